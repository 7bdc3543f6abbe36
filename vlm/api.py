"""The public calls: `generate`, `decode` for transformers' `custom_generate`, and `start` for stepping by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from mmspec.core.layers.compat import CACHE, with_cache_name
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, Drafter
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.stats import Stats
from mmspec.vlm.admission import take_apart
from mmspec.vlm.conversation.past import open_turn, past_of, with_positions
from mmspec.vlm.conversation.turn import Turn, picture_inputs
from mmspec.vlm.graphs.decoding import CapturedDecoding
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hf_model import TokenizerSignature, drafted_generate, inputs_of_call, streamer_of_call, unwrapped
from mmspec.vlm.output import (
    Generated,
    RowsFailed,
    cache_to_fill,
    check_content,
    check_prompt,
    collect,
    complete,
    tokens_in,
)
from mmspec.vlm.prefill import prepare_inputs, prompt_inputs, with_healed_ids
from mmspec.vlm.request import RequestSettings, TextRequest, check_call, check_config, prepare
from mmspec.vlm.streaming import ending


def generate(
    model: nn.Module,
    *,
    drafter: Drafter | str | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    streamer: object | None = None,
    return_dict: bool = False,
    on_stats: Callable[[Stats], None] | None = None,
    strict: bool = False,
    memory: str | None = None,
    **inputs: Any,
) -> Tensor | Generated:
    """Generate as `model.generate(**inputs)` does, with drafts by `drafter` that `rule` verifies.

    Exact with exact rules: greedy output equals plain decoding, and sampled output has its distribution.

    Args:
        model: The transformers model, with or without adapters.
        drafter: A drafter or its text, such as "lookup:longest=3" or "eagle:chain=4@FOLDER" (`mmspec methods` lists them).
            "auto" uses the available drafters while measured times show that they are faster, see `mmspec.vlm.auto`. None
            decodes plainly through the same loop.
        rule: "exact", the text of another rule, or a Rule.
        seed: An int, an int per row, or None to draw it from torch's global generator.
        capture: True runs decoding rounds without the host, as a CUDA graph on a GPU. A `mmspec.vlm.Rounds` reuses the
            captured rounds in later requests. Unsupported requests run uncaptured, and a warning gives the reason.
        streamer: A streamer of transformers, which receives the accepted tokens of every round.
        return_dict: Whether to return a Generated, which reports failed rows in its `errors` instead of raising.
        on_stats: A function called with the request's Stats after it has run.
        strict: Whether passes over drafts have the bits of single-token passes. Greedy output then equals that of
            `drafter=None, strict=True` in any dtype and batch; each pass costs more. See `mmspec.core.layers.strict`.
        memory: A budget such as "8GB" for the weights and the request. Drafts of a trained drafter that would exceed it
            are cut, with a warning; a request that does not fit without drafts is refused.
        **inputs: The arguments of `transformers.generate` for this model (input_ids, pixel_values, max_new_tokens,
            do_sample...). `past_key_values` or `cache`, as transformers 5.24 names it, may be a conversation, see
            `mmspec.vlm.conversation.Past`, or a cache, which is filled; the tokens that it holds are read again as the
            beginning of the whole prompt.

    Returns:
        int64 [B, L] in the layout of `transformers.generate`, or a Generated with `return_dict=True`.

    Raises:
        ValueError: The model or combination is not supported, `strict` is not supported by the model, or the budget is
            too small.
        RowsFailed: (a ValueError) Rows had NaN or Inf logits or, in sampling, processors that excluded every token.
    """
    inputs = with_cache_name(inputs)
    check_call(model, inputs)
    settings = RequestSettings(drafter, rule, seed, capture, strict, memory, streamer, return_dict, on_stats)
    arguments, turn = inputs, None
    with ending(streamer):
        if (past := past_of(inputs)) is not None:
            inputs, turn = open_turn(past, unwrapped(model), inputs, settings.drafter_for(model))
        engine = _CustomGenerate(settings, arguments, turn)
        return drafted_generate(model)(**inputs, streamer=streamer, custom_generate=engine)


def start(
    model: nn.Module,
    *,
    drafter: Drafter | str | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    strict: bool = False,
    memory: str | None = None,
    **inputs,
) -> DecodingRun:
    """Return a request that has not run yet, with the arguments of `generate`.

    Call its `step()` until it returns False; the tokens are in `.target.tokens`. Requests on the same model may take their
    steps in any order.
    """
    inputs = with_cache_name(inputs)
    check_call(model, inputs)
    settings = RequestSettings(drafter, rule, seed, capture, strict, memory, by_hand=True)
    return drafted_generate(model)(**inputs, custom_generate=_CustomGenerate(settings, inputs))


def decode(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    generation_config: GenerationConfig | None = None,
    drafter: Drafter | str | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    strict: bool = False,
    memory: str | None = None,
    tokenizer: object | None = None,
    **model_kwargs,
) -> Tensor | Generated:
    """Serve `model.generate(**inputs, custom_generate=mmspec.decode, drafter=..., rule=..., seed=...)`.

    The arguments are those of `generate`. A `streamer=` or `tokenizer=` of `model.generate` is used too, although
    transformers does not pass it on.
    """
    streamer = streamer_of_call()
    engine = _CustomGenerate(RequestSettings(drafter, rule, seed, capture, strict, memory, streamer), inputs_of_call())
    with ending(streamer):
        return engine(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)


decode.__signature__ = TokenizerSignature.of(decode)


class _CustomGenerate:
    """A callable for `custom_generate` with the arguments that transformers would not pass on: the caller's `inputs` of
    `generate` (None if unknown), and the turn of a conversation opened before the call."""

    def __init__(self, settings: RequestSettings, inputs: dict | None, turn: Turn | None = None):
        self.settings, self.inputs, self.turn = settings, inputs, turn
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
        config, past, settings = generation_config, past_of(model_kwargs), self.settings
        check_config(input_ids, config, model_kwargs)
        cache = cache_to_fill(model_kwargs.pop(CACHE, None), self.inputs, config)
        inputs = with_healed_ids(self.inputs, input_ids, config)
        if tokens_in(cache):
            check_prompt(cache, input_ids, inputs)
            # positions that transformers has prepared may be those behind the cached tokens
            model_kwargs = prepare_inputs(model, prompt_inputs(inputs, config))[1]
            model_kwargs.pop(CACHE, None)
        request = TextRequest(
            settings,
            input_ids,
            logits_processor or LogitsProcessorList(),
            stopping_criteria or StoppingCriteriaList(),
            config,
            model_kwargs,
            inputs,
            past,
            self.turn,
            cache,
        )
        if past is not None:
            _resume_conversation(request, model)
        with nullcontext() if past is None else past.lent(request.turn):
            decoding = _open(request, model)
            if settings.by_hand:
                return decoding
            goes_on = True
            if tokens_in(cache):
                goes_on = decoding.step()
                check_content(cache, decoding.target)
            stats = decoding.run() if goes_on else decoding.stats
            cache = complete(decoding, cache)
            stats.close(perf_counter() - started)
            if past is not None and not decoding.target.errors:
                past.keep(decoding, picture_inputs(request.prompt))
        if settings.on_stats is not None:
            settings.on_stats(stats)
        wants = config.return_dict_in_generate
        result = collect(
            decoding.target,
            stats,
            scores=wants and config.output_scores,
            logits=wants and config.output_logits,
            cache=(cache if past is None else past) if wants else None,
        )
        if result.errors and not settings.return_dict:
            raise RowsFailed(result)
        return result if settings.return_dict or wants else result.sequences


def _resume_conversation(request: TextRequest, model: nn.Module) -> None:
    """Open the turn of a conversation: select the part of the prompt to read, and its positions."""
    past, ids = request.past, request.ids
    if request.config.token_healing:
        raise ValueError("token_healing: expected False in a conversation, got True; heal the prompt's tokens yourself")
    if request.settings.by_hand:
        raise ValueError("past_key_values: expected none to step by hand, got a conversation; call mmspec.generate")
    past.check(model, ids.shape[0])
    if request.turn is None:
        drafter = request.settings.drafter_for(model)
        request.turn = open_turn(past, model, request.inputs | {"input_ids": ids}, drafter)[1]
    parts = take_apart(model)
    request.inputs = past.with_pictures(parts, ids, request.inputs)
    request.turn = with_positions(past, request.turn, parts, ids, request.model_kwargs)


def _open(request: TextRequest, model: nn.Module) -> DecodingRun:
    target, drafter, rule = prepare(model, request)
    settings, past = request.settings, request.past
    seed = target.agreed(int(torch.randint(2**62, ()))) if settings.seed is None else settings.seed
    keys = Keys.of(seed, target.batch, target.device)
    earlier = None if past is None else past.state_for(request.turn, drafter)
    state = dict(earlier=earlier, lasts=past is not None)
    if settings.capture is False:
        return DecodingRun(target, drafter, rule, keys, **state)
    rounds = Rounds() if settings.capture is True else settings.capture
    return CapturedDecoding(target, drafter, rule, keys, rounds=rounds, **state)
