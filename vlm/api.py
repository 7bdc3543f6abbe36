"""The public calls: `generate`, `decode` for transformers' `custom_generate`, and `start` for stepping by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun, Drafter
from mmspec.core.rules.base import Rule
from mmspec.core.stats import Stats
from mmspec.vlm.admission import take_apart
from mmspec.vlm.conversation.past import open_turn, past_of, with_positions
from mmspec.vlm.conversation.turn import Turn, picture_inputs
from mmspec.vlm.graphs.decoding import CapturedDecoding
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hf_model import TokenizerSignature, drafted_generate, inputs_of_call, streamer_of_call, unwrapped
from mmspec.vlm.output import Generated, RowsFailed, cache_to_fill, collect, complete
from mmspec.vlm.prefill import with_healed_ids
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
    **inputs,
) -> Tensor | Generated:
    """Generates as `model.generate(**inputs)` does, drafting with `drafter` and verifying by `rule`.

    inputs: whatever `transformers.generate` takes for this model (input_ids, pixel_values, max_new_tokens, do_sample...);
        `past_key_values` may be a conversation's, see `mmspec.vlm.conversation.Past`, or an empty cache, which is filled.
    drafter: None decodes plainly through the same loop; else a drafter or its text, "lookup:longest=3" or
        "eagle:chain=4@FOLDER" (`mmspec methods` lists them). "auto" drafts with what is at hand for the model as long as
        measured times say that it is faster, see `mmspec.vlm.auto`.
    rule: "exact", the text of another rule, or a Rule.
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
    check_call(model, inputs)
    settings = RequestSettings(drafter, rule, seed, capture, strict, streamer, return_dict, on_stats)
    given, turn = inputs, None
    with ending(streamer):
        if (past := past_of(inputs)) is not None:
            inputs, turn = open_turn(past, unwrapped(model), inputs, settings.drafter_for(model))
        engine = _CustomGenerate(settings, given, turn)
        return drafted_generate(model)(**inputs, streamer=streamer, custom_generate=engine)


def start(
    model: nn.Module,
    *,
    drafter: Drafter | str | None = None,
    rule: str | Rule = "exact",
    seed: int | Sequence[int] | None = None,
    capture: bool | Rounds = False,
    strict: bool = False,
    **inputs,
) -> DecodingRun:
    """A request that has not run yet: call its `step()` until it returns False; tokens are in `.target.tokens`.

    Arguments as in `generate`. Requests on one model may take steps in any order.
    """
    check_call(model, inputs)
    settings = RequestSettings(drafter, rule, seed, capture, strict, by_hand=True)
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
    tokenizer: object | None = None,
    **model_kwargs,
) -> Tensor | Generated:
    """The same engine for `model.generate(**inputs, custom_generate=mmspec.decode, drafter=..., rule=..., seed=...)`.

    A `streamer=` and a `tokenizer=` given to `model.generate` are served although transformers does not pass them on.
    """
    streamer = streamer_of_call()
    engine = _CustomGenerate(RequestSettings(drafter, rule, seed, capture, strict, streamer), inputs_of_call())
    with ending(streamer):
        return engine(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)


decode.__signature__ = TokenizerSignature.of(decode)


class _CustomGenerate:
    """A callable for `custom_generate` that carries what transformers would lose on the way.

    Args:
        settings: of the request.
        inputs: the arguments of `generate` as the caller gave them; None where they are not known.
        turn: of a conversation, where it was opened before the call.
    """

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
        cache = cache_to_fill(model_kwargs.pop("past_key_values", None), self.inputs, config)
        request = TextRequest(
            settings,
            input_ids,
            logits_processor or LogitsProcessorList(),
            stopping_criteria or StoppingCriteriaList(),
            config,
            model_kwargs,
            with_healed_ids(self.inputs, input_ids, config),
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
            stats = decoding.run()
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
    """Opens the turn of a conversation: the part of its prompt that this call reads, and where it stands."""
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
    """The decoding of a request, before its prefill."""
    target, drafter, rule = prepare(model, request)
    settings, past = request.settings, request.past
    seed = target.agreed(int(torch.randint(2**62, ()))) if settings.seed is None else settings.seed
    keys = Keys.of(seed, target.batch, target.device)
    earlier = None if past is None else past.state_for(request.turn, drafter)
    kept = dict(earlier=earlier, lasts=past is not None)
    if settings.capture is False:
        return DecodingRun(target, drafter, rule, keys, **kept)
    rounds = Rounds() if settings.capture is True else settings.capture
    return CapturedDecoding(target, drafter, rule, keys, rounds=rounds, **kept)
