"""The public calls: `generate`, `decode` for transformers' `custom_generate`, and `start` for stepping by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerationMode

from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun, Drafter
from mmspec.core.rules.base import Rule
from mmspec.core.rules.by_name import resolve
from mmspec.core.stats import Stats
from mmspec.io.validation import boolean
from mmspec.vlm.admission import admit
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.auto import AUTO, automatic
from mmspec.vlm.conversation.past import open_turn, past_of, with_positions
from mmspec.vlm.conversation.turn import Turn, picture_inputs
from mmspec.vlm.graphs.decoding import CapturedDecoding
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hf_model import (
    TokenizerSignature,
    drafted_generate,
    inputs_of_call,
    setting_of_call,
    streamer_of_call,
    unwrapped,
)
from mmspec.vlm.output import (
    Generated,
    RowsFailed,
    cache_to_fill,
    check_implementation,
    check_layout,
    collect,
    complete,
)
from mmspec.vlm.prefill import prompt_inputs, with_healed_ids
from mmspec.vlm.request_checks import check_length, check_numbers, check_rows
from mmspec.vlm.streaming import StreamerFeed, ending
from mmspec.vlm.target import TextTarget


def generate(
    model: nn.Module,
    *,
    drafter: Drafter | Literal["auto"] | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    streamer: object | None = None,
    return_dict: bool = False,
    on_stats: Callable[[Stats], None] | None = None,
    strict: bool = False,
    **inputs,
) -> Tensor | Generated:
    """Generates as `model.generate(**inputs)` does, drafting with `drafter` and verifying by `rule`.

    inputs: whatever `transformers.generate` takes for this model (input_ids, pixel_values, max_new_tokens, do_sample...);
        `past_key_values` may be a conversation's, see `mmspec.vlm.conversation.Past`, or an empty cache, which is filled.
    drafter: None decodes plainly through the same loop; "auto" drafts with what is at hand for the model as long as it pays
        by measured time, see `mmspec.vlm.auto`.   rule: "exact" or a rule's name or object.
    seed: an int, one int per row, or None to draw one from torch's global generator.
    capture: True runs decode rounds without the host, as a CUDA graph on a GPU (see `mmspec.vlm.Rounds`, which keeps such
        rounds from request to request); what cannot be captured runs as ever, and a warning says why.
    on_stats: called with the request's Stats once it has run, for callers that want them beside a plain result.
    strict: passes over drafts give the bits of single passes, so that greedy output equals that of `drafter=None` and
        `strict=True` in any dtype, in batches of any kind; each pass costs more. See `mmspec.core.strict`.
    Returns int64 [B, L] laid out as `transformers.generate` lays it out, or a Generated with `return_dict=True`
    (then rows that failed are reported in its `errors` instead of raised).
    Exact with exact rules: greedy output equals plain decoding, sampled output has its law.
    Raises ValueError for unsupported models and combinations, and for models whose bits `strict` cannot keep; RowsFailed
    (a ValueError) when rows met NaN or Inf,
    or, sampled, processors that rule out every token.
    """
    _check(model, inputs)
    engine = _CustomGenerate(
        drafter, rule, seed, streamer, return_dict, inputs, on_stats=on_stats, capture=capture, strict=strict
    )
    with ending(streamer):
        if (past := past_of(inputs)) is not None:
            inputs, engine.turn = open_turn(past, unwrapped(model), inputs, _drafter(model, drafter))
        return drafted_generate(model)(**inputs, streamer=streamer, custom_generate=engine)


def start(
    model: nn.Module,
    *,
    drafter: Drafter | Literal["auto"] | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    strict: bool = False,
    **inputs,
) -> DecodingRun:
    """A request that has not run yet: call its `step()` until it returns False; tokens are in `.target.tokens`.

    Arguments as in `generate`. Requests on one model may take steps in any order.
    """
    _check(model, inputs)
    engine = _CustomGenerate(drafter, rule, seed, None, False, inputs, open_only=True, capture=capture, strict=strict)
    return drafted_generate(model)(**inputs, custom_generate=engine)


def decode(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    generation_config: GenerationConfig | None = None,
    drafter: Drafter | Literal["auto"] | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    strict: bool = False,
    tokenizer: object | None = None,
    **model_kwargs,
) -> Tensor | Generated:
    """The same engine for `model.generate(**inputs, custom_generate=mmspec.decode, drafter=..., rule=..., seed=...)`.

    A `streamer=` and a `tokenizer=` given to `model.generate` are served although transformers does not pass them on.
    """
    streamer = streamer_of_call()
    engine = _CustomGenerate(drafter, rule, seed, streamer, False, inputs_of_call(), capture=capture, strict=strict)
    with ending(streamer):
        return engine(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)


decode.__signature__ = TokenizerSignature.of(decode)


class _CustomGenerate:
    """A callable for `custom_generate` that carries what transformers would lose on the way."""

    def __init__(
        self,
        drafter,
        rule,
        seed,
        streamer,
        return_dict: bool,
        inputs: dict | None,
        open_only: bool = False,
        on_stats=None,
        capture: bool | Rounds = False,
        strict: bool = False,
    ):
        if not isinstance(capture, (bool, Rounds)):
            raise ValueError(
                f"capture: expected True, False or Rounds, got {capture!r}; make one with mmspec.vlm.Rounds()"
            )
        self.rounds = Rounds() if capture is True else capture or None
        self.drafter, self.rule, self.seed, self.streamer = drafter, rule, seed, streamer
        self.return_dict = boolean("return_dict", return_dict)
        self.inputs, self.open_only, self.on_stats = inputs, open_only, on_stats
        self.strict = boolean("strict", strict)
        self.turn: Turn | None = None
        self.__signature__ = TokenizerSignature.of(self.__call__)

    @torch.no_grad()
    def __call__(
        self,
        model,
        input_ids,
        logits_processor=None,
        stopping_criteria=None,
        generation_config=None,
        tokenizer=None,
        **model_kwargs,
    ):
        started = perf_counter()
        config, past = generation_config, past_of(model_kwargs)
        _refuse(input_ids, config, model_kwargs)
        cache = cache_to_fill(model_kwargs.pop("past_key_values", None), self.inputs, config)
        self.inputs = with_healed_ids(self.inputs, input_ids, config)
        if past is not None:
            self._resume_conversation(past, model, input_ids, config, model_kwargs)
        with nullcontext() if past is None else past.lent(self.turn):
            decoding = self._open(
                model, input_ids, logits_processor, stopping_criteria, config, model_kwargs, past, cache
            )
            if self.open_only:
                return decoding
            stats = decoding.run()
            cache = complete(decoding, cache)
            stats.close(perf_counter() - started)
            if past is not None and not decoding.target.errors:
                past.keep(decoding, picture_inputs(prompt_inputs(self.inputs, config)))
        if self.on_stats is not None:
            self.on_stats(stats)
        wants = config.return_dict_in_generate
        result = collect(
            decoding.target,
            stats,
            scores=wants and config.output_scores,
            logits=wants and config.output_logits,
            cache=(cache if past is None else past) if wants else None,
        )
        if result.errors and not self.return_dict:
            raise RowsFailed(result)
        return result if self.return_dict or wants else result.sequences

    def _resume_conversation(self, past, model, input_ids, config, model_kwargs) -> None:
        """What of a conversation's prompt this call reads."""
        if config.token_healing:
            raise ValueError(
                "token_healing: expected False in a conversation, got True; heal the prompt's tokens yourself"
            )
        if self.open_only:
            raise ValueError("past_key_values: expected none to step by hand, got a conversation; call mmspec.generate")
        past.check(model, input_ids.shape[0])
        if self.turn is None:
            drafter = _drafter(model, self.drafter)
            self.turn = open_turn(past, model, self.inputs | {"input_ids": input_ids}, drafter)[1]
        parts = take_apart(model)
        self.inputs = past.with_pictures(parts, input_ids, self.inputs)
        self.turn = with_positions(past, self.turn, parts, input_ids, model_kwargs)

    def _open(self, model, input_ids, processors, stopping, config, model_kwargs, past, cache) -> DecodingRun:
        if self.streamer is not None and input_ids.shape[0] > 1:
            raise ValueError(f"streamer: expected batch 1, got batch {input_ids.shape[0]}; send rows one by one")
        if self.open_only and cache is not None:
            raise ValueError("past_key_values: expected none to step by hand, got a cache; call mmspec.generate")
        pad = config._pad_token_tensor
        drafter = _drafter(model, self.drafter)
        keep_scores = bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))
        target = TextTarget(
            take_apart(model),
            input_ids,
            processors or LogitsProcessorList(),
            stopping or StoppingCriteriaList(),
            greedy=not config.do_sample,
            pad=0 if pad is None else int(pad),
            model_kwargs=model_kwargs,
            inputs=prompt_inputs(self.inputs, config),
            listener=None if self.streamer is None else StreamerFeed(self.streamer),
            keep_scores=keep_scores,
            show_scores=bool(config.return_dict_in_generate and config.output_scores),
            levels=getattr(drafter, "levels", None),
            turn=self.turn,
            strict=self.strict,
            goes_on=keep_scores or cache is not None,
        )
        if cache is not None:
            check_layout(cache, target)
        check_length(target.parts, input_ids, model_kwargs.get("attention_mask"), target.most)
        admit(target)
        rule = resolve(self.rule, greedy=target.greedy)
        seed = target.agreed(int(torch.randint(2**62, ()))) if self.seed is None else self.seed
        keys = Keys.of(seed, target.batch, input_ids.device)
        earlier = None if past is None else past.state_for(self.turn, drafter)
        kept = dict(earlier=earlier, lasts=past is not None)
        if self.rounds is None:
            return DecodingRun(target, drafter, rule, keys, **kept)
        return CapturedDecoding(target, drafter, rule, keys, rounds=self.rounds, **kept)


def _drafter(model: nn.Module, drafter: Drafter | Literal["auto"] | None) -> Drafter | None:
    return automatic(model) if isinstance(drafter, str) and drafter == AUTO else drafter


def _refuse(input_ids: Tensor, config: GenerationConfig, model_kwargs: dict) -> None:
    check_rows(input_ids)
    check_numbers(vars(config))
    check_implementation(config.cache_implementation)
    mode = config.get_generation_mode()
    if config.num_beams and config.num_beams > 1:
        raise ValueError(
            f"num_beams: expected 1, got {config.num_beams}; beam search has no draft-and-verify form here"
        )
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(f"generation_config: expected greedy search or sampling, got {mode.value}; unset its settings")
    embeds = model_kwargs.get("inputs_embeds")
    if input_ids.shape[1] == 0 or (embeds is not None and embeds.shape[1] != input_ids.shape[1]):
        raise ValueError(f"input_ids: expected the ids of the whole prompt, got {input_ids.shape[1]} of them; "
                         "beside inputs_embeds, pass as many input_ids")  # fmt: skip
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise ValueError(f"{name}: expected False, got True; states of verified drafts are not kept per token")


def _check(model: nn.Module, inputs: dict) -> None:
    """Raises ValueError for arguments of `generate` that its `custom_generate` cannot serve. Takes an empty
    `custom_generate` out of `inputs`, since ours comes in its place."""
    if inputs.pop("custom_generate", None) is not None:
        raise ValueError("custom_generate: expected none, as mmspec.generate is one; call model.generate with it")
    if inputs.get("assistant_model") is not None:
        raise ValueError("assistant_model: expected none, got a model; pass drafter=mmspec.drafters.SmallModel(model)")
    if inputs.get("tokenizer") is None and setting_of_call(unwrapped(model), inputs, "stop_strings") is not None:
        raise ValueError("stop_strings: expected the tokenizer beside it, got none; pass tokenizer=")
    check_implementation(setting_of_call(unwrapped(model), inputs, "cache_implementation"))
    check_numbers(inputs)
