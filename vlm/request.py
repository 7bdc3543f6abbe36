"""A request: the arguments of mmspec's own calls, the call prepared by transformers, and its target, drafter and rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import Cache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerationMode

from mmspec.core.layers.fingerprint import modules_of
from mmspec.core.length.portfolio import GoodputPortfolio
from mmspec.core.round.loop import Drafter, opens_from_ids
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.stats import Stats
from mmspec.io.validation import boolean, plain
from mmspec.vlm.admission import admit, check_numbers, check_tensors, take_apart
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.conversation.turn import Turn
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hf_model import setting_of_call, unwrapped
from mmspec.vlm.memory_budget import bytes_of, drafter_within
from mmspec.vlm.output import check_implementation, check_layout
from mmspec.vlm.prefill import prompt_inputs
from mmspec.vlm.processors.nodes import CONTEXT_FREE, ROW_FREE
from mmspec.vlm.streaming import StreamerFeed
from mmspec.vlm.target import TextTarget


@dataclass(frozen=True)
class RequestSettings:
    """The arguments of `mmspec.generate` beside those of transformers, see `mmspec.vlm.api.generate`."""

    drafter: Drafter | str | None = None
    rule: str | Rule = "exact"
    seed: int | Sequence[int] | None = None
    capture: bool | Rounds = False
    strict: bool = False
    memory: str | None = None
    streamer: object | None = None
    return_dict: bool = False
    on_stats: Callable[[Stats], None] | None = None
    by_hand: bool = False  # whether the caller takes the steps, so that the request is only opened

    def __post_init__(self) -> None:
        if not isinstance(self.capture, bool | Rounds):
            raise ValueError(f"capture: expected True, False or Rounds, got {self.capture!r}; pass mmspec.vlm.Rounds()")
        if self.memory is not None and not isinstance(self.memory, str):
            raise ValueError(f"memory: expected a size such as 8GB, got {self.memory!r:.60}; write it as a text")
        if self.streamer is not None and not (hasattr(self.streamer, "put") and hasattr(self.streamer, "end")):
            raise ValueError(f"streamer: expected a streamer of transformers, got {self.streamer!r:.60}; leave it out")
        if not callable(self.on_stats) and self.on_stats is not None:
            raise ValueError(f"on_stats: expected a function of Stats, got {self.on_stats!r:.60}; leave it out")
        boolean("return_dict", self.return_dict)
        boolean("strict", self.strict)

    def drafter_for(self, model: nn.Module) -> Drafter | None:
        """Return the drafter object, which is created for the model if the setting is a text."""
        if not isinstance(self.drafter, str):
            return self.drafter
        from mmspec.vlm.drafters.from_text import drafter_from_text

        return drafter_from_text(self.drafter, model)


@dataclass
class TextRequest:
    """A `generate` call as transformers passes it to a `custom_generate` callable."""

    settings: RequestSettings
    ids: Tensor  # int64 [B, P]
    processors: LogitsProcessorList
    stopping: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict  # of the first pass
    inputs: dict | None  # as the caller passed them; None if unknown
    past: Past | None = None  # the conversation that the request continues
    turn: Turn | None = None
    cache: Cache | None = None  # of transformers, to fill after the request

    @property
    def prompt(self) -> dict | None:
        return prompt_inputs(self.inputs, self.config)

    @property
    def keeps_scores(self) -> bool:
        return bool(self.config.return_dict_in_generate and (self.config.output_scores or self.config.output_logits))


def prepare(model: nn.Module, request: TextRequest) -> tuple[TextTarget, Drafter | None, Rule]:
    """Create the target, the drafter and the rule of a request, whose config `check_config` has checked."""
    from mmspec.vlm.drafters.from_text import rule_for

    settings, config, streamer = request.settings, request.config, request.settings.streamer
    if streamer is not None and request.ids.shape[0] > 1:
        raise ValueError(f"streamer: expected batch 1, got batch {request.ids.shape[0]}; send rows one by one")
    if settings.by_hand and request.cache is not None:
        raise ValueError("past_key_values: expected none to step by hand, got a cache; call mmspec.generate")
    pad = config._pad_token_tensor
    drafter = settings.drafter_for(model)
    if not request.ids.shape[1]:
        drafter = _without_ids(drafter, request.processors)
    target = TextTarget(
        take_apart(model),
        request.ids,
        request.processors,
        request.stopping,
        greedy=not config.do_sample,
        pad=0 if pad is None else int(pad),
        model_kwargs=request.model_kwargs,
        inputs=request.prompt,
        listener=None if streamer is None else StreamerFeed(streamer),
        keep_scores=request.keeps_scores,
        show_scores=bool(config.return_dict_in_generate and config.output_scores),
        levels=getattr(drafter, "levels", None),
        turn=request.turn,
        strict=settings.strict,
        goes_on=request.keeps_scores or request.cache is not None,
    )
    if request.cache is not None:
        check_layout(request.cache, target)
    admit(target, drafts=drafter is not None)
    if settings.memory is not None:
        held = settings.capture.nbytes if isinstance(settings.capture, Rounds) else 0
        drafter = drafter_within(target, drafter, bytes_of(settings.memory), held)
    return target, drafter, rule_for(settings.rule, model, greedy=target.greedy)


def _without_ids(drafter: Drafter | None, processors: LogitsProcessorList) -> Drafter | None:
    """Return the drafter of a request with embeddings alone, which reads the answer's ids; a portfolio keeps such
    drafters. Drafters that read the prompt's ids, and processors that have to be proved on them, are refused."""
    if isinstance(drafter, GoodputPortfolio):
        usable = tuple(filter(_reads_the_answer, drafter.drafters))
        if 0 < len(usable) < len(drafter.drafters):
            drafter = GoodputPortfolio(usable, explore=drafter.explore, clock=drafter.clock)
    if drafter is not None and not _reads_the_answer(drafter):
        raise ValueError(
            f"drafter: expected None or a lookup with inputs_embeds alone, got {type(drafter).__name__}, which "
            "reads the prompt's ids; pass input_ids too"
        )
    if own := [type(processor).__name__ for processor in processors if type(processor) not in CONTEXT_FREE + ROW_FREE]:
        raise ValueError(
            f"logits_processor: expected processors of transformers with inputs_embeds alone, got {own[0]}; "
            "pass input_ids too"
        )
    return drafter


def _reads_the_answer(drafter: Drafter) -> bool:
    return opens_from_ids(drafter) and not modules_of(drafter)


def check_call(model: nn.Module, inputs: dict) -> None:
    """Check the arguments of a `generate` call in place: an empty `custom_generate` is removed, and numbers of numpy
    and torch become Python's own, since transformers supports few of these."""
    if inputs.pop("custom_generate", None) is not None:
        raise ValueError(
            "custom_generate: expected none, as mmspec.generate is itself such a function; call model.generate with it"
        )
    if inputs.get("assistant_model") is not None:
        raise ValueError("assistant_model: expected none, got a model; pass drafter=mmspec.drafters.SmallModel(model)")
    model = unwrapped(model)
    if inputs.get("tokenizer") is None and setting_of_call(model, inputs, "stop_strings") is not None:
        raise ValueError("stop_strings: expected a tokenizer too, got none; pass tokenizer=")
    check_implementation(setting_of_call(model, inputs, "cache_implementation"))
    inputs.update({name: plain(value) for name, value in inputs.items()})
    check_numbers(inputs)
    check_tensors(inputs)


def check_config(ids: Tensor, config: GenerationConfig, model_kwargs: dict) -> None:
    """Check the prompt, int64 [B, P], and the settings of a prepared call."""
    if ids.shape[0] == 0:
        raise ValueError("input_ids: expected at least one row, got a batch of none; send a prompt")
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
    # embeddings may stand alone
    known = ids.shape[1] if embeds is None else embeds.shape[1]
    if known == 0 or ids.shape[1] not in ({known} if embeds is None else {0, known}):
        raise ValueError(
            f"input_ids: expected the ids of the whole prompt, got {ids.shape[1]} of them; "
            "with inputs_embeds, pass as many input_ids too, or none"
        )
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise ValueError(f"{name}: expected False, got True; states of verified drafts are not stored per token")
