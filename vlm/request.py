"""A request: the arguments of our own calls, the call that transformers has prepared, and who serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import Cache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerationMode

from mmspec.core.loop import Drafter
from mmspec.core.rules.base import Rule
from mmspec.core.rules.by_name import resolve
from mmspec.core.stats import Stats
from mmspec.io.validation import boolean
from mmspec.vlm.admission import admit, check_numbers, take_apart
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.conversation.turn import Turn
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hf_model import setting_of_call, unwrapped
from mmspec.vlm.output import check_implementation, check_layout
from mmspec.vlm.prefill import prompt_inputs
from mmspec.vlm.streaming import StreamerFeed
from mmspec.vlm.target import TextTarget


@dataclass(frozen=True)
class RequestSettings:
    """The arguments of `mmspec.generate` that are not transformers' own, see there.

    by_hand: the caller takes the steps, so that the request is only opened.

    Raises:
        ValueError: for a `capture` that is no switch and no Rounds, and for switches that are no truth values.
    """

    drafter: Drafter | str | None = None
    rule: str | Rule = "exact"
    seed: int | Sequence[int] | None = None
    capture: bool | Rounds = False
    strict: bool = False
    streamer: object | None = None
    return_dict: bool = False
    on_stats: Callable[[Stats], None] | None = None
    by_hand: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.capture, bool | Rounds):
            raise ValueError(
                f"capture: expected True, False or Rounds, got {self.capture!r}; make one with mmspec.vlm.Rounds()"
            )
        boolean("return_dict", self.return_dict)
        boolean("strict", self.strict)

    def drafter_for(self, model: nn.Module) -> Drafter | None:
        """The drafter object, that of a text made for the model.   Raises ValueError for an unknown text."""
        if not isinstance(self.drafter, str):
            return self.drafter
        from mmspec.vlm.drafters.from_text import drafter_from_text

        return drafter_from_text(self.drafter, model)


@dataclass
class TextRequest:
    """A `generate` call as transformers hands it to a `custom_generate` callable.

    ids: int64 [B, P].
    model_kwargs: the arguments of the first pass.
    inputs: the arguments of the call as the caller gave them; None where they are not known.
    past, turn: the conversation that it goes on, and its turn there; None for a request of its own.
    cache: transformers' cache to fill behind the request, None for none.
    """

    settings: RequestSettings
    ids: Tensor
    processors: LogitsProcessorList
    stopping: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict
    inputs: dict | None
    past: Past | None = None
    turn: Turn | None = None
    cache: Cache | None = None

    @property
    def prompt(self) -> dict | None:
        """The prompt among `inputs`, see `prompt_inputs`."""
        return prompt_inputs(self.inputs, self.config)

    @property
    def keeps_scores(self) -> bool:
        """Whether scores of every step are returned, processed or raw."""
        return bool(self.config.return_dict_in_generate and (self.config.output_scores or self.config.output_logits))


def prepare(model: nn.Module, request: TextRequest) -> tuple[TextTarget, Drafter | None, Rule]:
    """Make the target, the drafter and the rule of a request.

    Args:
        model: the transformers model, without wrappers.
        request: the request; its config was checked with `check_config`.

    Raises:
        ValueError: for a request that cannot be served exactly, with what to do.
    """
    settings, config, streamer = request.settings, request.config, request.settings.streamer
    if streamer is not None and request.ids.shape[0] > 1:
        raise ValueError(f"streamer: expected batch 1, got batch {request.ids.shape[0]}; send rows one by one")
    if settings.by_hand and request.cache is not None:
        raise ValueError("past_key_values: expected none to step by hand, got a cache; call mmspec.generate")
    pad = config._pad_token_tensor
    drafter = settings.drafter_for(model)
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
    admit(target)
    return target, drafter, resolve(settings.rule, greedy=target.greedy)


def check_call(model: nn.Module, inputs: dict) -> None:
    """Raises ValueError for arguments of `generate` that its `custom_generate` cannot serve. Takes an empty
    `custom_generate` out of `inputs`, since ours comes in its place."""
    if inputs.pop("custom_generate", None) is not None:
        raise ValueError("custom_generate: expected none, as mmspec.generate is one; call model.generate with it")
    if inputs.get("assistant_model") is not None:
        raise ValueError("assistant_model: expected none, got a model; pass drafter=mmspec.drafters.SmallModel(model)")
    model = unwrapped(model)
    if inputs.get("tokenizer") is None and setting_of_call(model, inputs, "stop_strings") is not None:
        raise ValueError("stop_strings: expected the tokenizer beside it, got none; pass tokenizer=")
    check_implementation(setting_of_call(model, inputs, "cache_implementation"))
    check_numbers(inputs)


def check_config(ids: Tensor, config: GenerationConfig, model_kwargs: dict) -> None:
    """Raises ValueError for a prepared call whose prompt or settings cannot be served.

    Args:
        ids: int64 [B, P].
        config: the call's settings.
        model_kwargs: the arguments of the first pass.
    """
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
    if ids.shape[1] == 0 or (embeds is not None and embeds.shape[1] != ids.shape[1]):
        raise ValueError(f"input_ids: expected the ids of the whole prompt, got {ids.shape[1]} of them; "
                         "beside inputs_embeds, pass as many input_ids")  # fmt: skip
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise ValueError(f"{name}: expected False, got True; states of verified drafts are not kept per token")
