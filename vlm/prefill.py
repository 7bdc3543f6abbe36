"""The prompt: its inputs as the class prepares them, and the passes that read it.

The first tokens are read as the class reads them. Tokens behind committed ones are read as a draft is: a chain of known
tokens, under our own masks and through the closed forms of recurrent layers, all of it committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from mmspec.core.cache import SlotCache
from mmspec.core.layer_plan import LayerPlan, attention_masks
from mmspec.core.tree import uncached_chain
from mmspec.vlm.architectures import Parts
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.hidden_states import RecordedStates, override_mask, record_states
from mmspec.vlm.mixers import tree_passes

_NOT_PROMPT = {"streamer", "logits_processor", "stopping_criteria", "generation_config", "prefix_allowed_tokens_fn",
               "custom_generate", "tokenizer", "past_key_values", "assistant_model", "synced_gpus"}  # fmt: skip
# settings of a model's own defaults that need a tokenizer
PROMPT_ALONE = {"stop_strings": None, "token_healing": False}


def prompt_inputs(inputs: dict | None, config: GenerationConfig) -> dict | None:
    """The prompt among the arguments of a `generate` call: ids, masks, pictures, and how often each row is repeated."""
    if inputs is None:
        return None
    prompt = {k: v for k, v in inputs.items() if v is not None and k not in _NOT_PROMPT and not hasattr(config, k)}
    return prompt | {"num_return_sequences": config.num_return_sequences or 1}


def with_healed_ids(inputs: dict | None, ids: Tensor, config: GenerationConfig) -> dict | None:
    """The arguments of a `generate` call with the ids int64 [B, P] that token healing has made of the prompt's."""
    if inputs is None or not config.token_healing:
        return inputs
    copies = config.num_return_sequences or 1
    return {name: one for name, one in inputs.items() if name != "inputs"} | {"input_ids": ids[::copies]}


def prepare_inputs(model: nn.Module, inputs: dict) -> tuple[Tensor, dict]:
    """What `model.generate` makes of `inputs` (see `prompt_inputs`): the ids [B, P] and the arguments of its first pass.

    Runs the model's own vision tower where the prompt holds pictures.
    """
    return class_generate(model)(**inputs, **PROMPT_ALONE, do_sample=True, max_new_tokens=1, custom_generate=_prepared)


def first_inputs(parts: Parts, ids: Tensor, kwargs: dict, cache: SlotCache) -> dict:
    """The arguments of the pass that reads a prompt into `cache`. kwargs: as `prepare_inputs` gives them."""
    kwargs = dict(kwargs, past_key_values=cache, use_cache=True) | last_logits_only(parts, ids)
    inputs = parts.model.prepare_inputs_for_generation(ids, is_first_iteration=True, **kwargs)
    # some classes leave an empty cache out, and would make one of their own
    return dict(inputs, past_key_values=cache)


def last_logits_only(parts: Parts, ids: Tensor) -> dict:
    """What asks a forward over `ids` [B, n] for the last logits alone, where it can be asked."""
    if not parts.last_only:
        return {}
    if any(layer.kind == "shared" for layer in parts.plan.layers):
        # a number would let layers that store nothing skip the prompt, whose states drafters read
        return {"logits_to_keep": ids.new_tensor([ids.shape[1] - 1])}
    return {"logits_to_keep": 1}


def first_tokens(kwargs: dict, count: int) -> dict:
    """The `kwargs` that `prepare_inputs` gives for an unpadded prompt, cut to its first tokens, which hold its pictures."""
    alike = ("position_ids", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
    return {
        name: value[..., :count] if name in alike and value is not None else value for name, value in kwargs.items()
    }


def first_positions(inputs: dict, ids: Tensor, given: Tensor) -> Tensor:
    """Positions of a prompt, int64 [..., B, P] or [1, P]: what the class makes of those `given`; its slots, padding included,
    where it wants none.

    inputs: as `first_inputs` gives them.
    """
    if "position_ids" not in inputs:
        return given
    positions = inputs["position_ids"]
    return torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions


def lasting_inputs(plan: LayerPlan, inputs: dict) -> dict[str, Tensor]:
    """What later passes are given again of a prompt's inputs: which pictures the last token sees, [B, 1, ...]."""
    seen = inputs.get("cross_attention_mask") if any(layer.kind == "cross" for layer in plan.layers) else None
    return {} if seen is None else {"cross_attention_mask": seen[:, -1:]}


def wrapped_logits(parts: Parts, inputs: dict) -> Tensor:
    """Logits [B, N, V] of a pass through the model's wrapper, whose decoder gets one mask for each type of layer: wrappers
    know only the first.   inputs: with an `attention_mask` as `attention_masks` makes it."""
    mask = inputs["attention_mask"]
    if not isinstance(mask, dict):
        return parts.model(**inputs, return_dict=True).logits
    with override_mask(parts.decoder, mask):
        return parts.model(**inputs | {"attention_mask": mask["full_attention"]}, return_dict=True).logits


def _prepared(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None, **model_kwargs):
    return input_ids, model_kwargs


_LONGEST = 256  # tokens of text that layers with states read at once: their closed form takes its square in memory


@dataclass(slots=True)
class PrefillResult:
    """Outputs of the passes over a prompt.

    logits: [B, 1, V], behind the last token.
    embeds, hidden: [B, n, .], see `RecordedStates`; hidden holds the chosen levels where there are any.
    """

    logits: Tensor
    embeds: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, logits: Tensor, seen: RecordedStates, device: torch.device) -> Self:
        """On one device, whichever layers lie elsewhere."""
        hidden = seen.hidden if seen.levels is None else seen.levels
        return cls(*(one.to(device) for one in (logits[:, -1:], seen.embeds, hidden)))

    def then(self, other: PrefillResult) -> PrefillResult:
        """Both, one behind the other."""
        embeds, hidden = (torch.cat(pair, 1) for pair in ((self.embeds, other.embeds), (self.hidden, other.hidden)))
        return PrefillResult(other.logits, embeds, hidden)


@dataclass(frozen=True, slots=True)
class UnreadPrompt:
    """What of a prompt is read behind a cache.

    ids: int64 [1, n].   positions: int64 [..., 1, n].   sees: bool [1, n, n], which of these tokens each sees.
    pictures: the forward's arguments for the pictures among them; none where all is text.
    lasting: what every pass is given, see `lasting_inputs`.
    """

    ids: Tensor
    positions: Tensor
    sees: Tensor
    pictures: Mapping[str, object]
    lasting: Mapping[str, Tensor]

    @classmethod
    def text(cls, ids: Tensor, positions: Tensor, lasting: Mapping[str, Tensor]) -> Self:
        count = ids.shape[1]
        sees = torch.ones(1, count, count, dtype=torch.bool, device=ids.device).tril()
        return cls(ids, positions, sees, {}, lasting)

    def part(self, first: int, end: int, pictures: Mapping[str, object] | None = None) -> UnreadPrompt:
        """Some of the tokens, which see none behind them. pictures: those among them."""
        span = slice(first, end)
        sees, positions = self.sees[:, span, span], self.positions[..., span]
        return replace(self, ids=self.ids[:, span], positions=positions, sees=sees, pictures=pictures or {})

    def split(self, count: int) -> list[UnreadPrompt]:
        """The first `count` tokens, which hold the pictures, and the others."""
        return [self.part(0, count, self.pictures), self.part(count, self.ids.shape[1])]

    def parts(self, stateful: bool) -> list[UnreadPrompt]:
        """In pieces that layers with states can read."""
        count = self.ids.shape[1]
        if not stateful or self.pictures or count <= _LONGEST:
            return [self]
        return [self.part(first, min(first + _LONGEST, count)) for first in range(0, count, _LONGEST)]


def read_first(parts: Parts, inputs: dict, levels: tuple[int, ...] | None, device: torch.device) -> PrefillResult:
    """The pass over a prompt from its first token on. inputs: as `first_inputs` gives them, the empty cache among them.
    device: of the request."""
    with record_states(parts.decoder, levels) as seen:
        logits = parts.model(**inputs, return_dict=True).logits
    return PrefillResult.of(logits, seen, device)


def read_rest(parts: Parts, cache: SlotCache, rest: UnreadPrompt, levels: tuple[int, ...] | None) -> PrefillResult:
    """Passes over tokens behind those committed, which commit them."""
    found = None
    for part in rest.parts(bool(parts.plan.stateful)):
        read = _read_chunk(parts, cache, part, levels)
        found = read if found is None else found.then(read)
    return found


def _read_chunk(parts: Parts, cache: SlotCache, rest: UnreadPrompt, levels: tuple[int, ...] | None) -> PrefillResult:
    count = rest.ids.shape[1]
    tree, dtype = uncached_chain(count, rest.ids.device), parts.dtype
    inputs = dict(
        input_ids=rest.ids,
        position_ids=rest.positions,
        attention_mask=attention_masks(parts.plan, cache, rest.sees, tree.depth, tree.max_depth, dtype),
        past_key_values=cache,
        use_cache=True,
    )
    inputs |= {name: value.expand(-1, count, *value.shape[2:]) for name, value in rest.lasting.items()}
    with tree_passes(parts.mixers, cache, tree), record_states(parts.decoder, levels) as seen:
        logits = _logits(parts, inputs, rest.pictures)
    cache.commit([list(range(count))])
    return PrefillResult.of(logits, seen, rest.ids.device)


def _logits(parts: Parts, inputs: dict, pictures: Mapping[str, object]) -> Tensor:
    """[1, 1, V] behind the last token; pictures need the wrapper, which puts their features in place."""
    if not pictures and parts.direct:
        return parts.head(parts.decoder(**inputs).last_hidden_state[:, -1:])
    inputs = inputs | last_logits_only(parts, inputs["input_ids"])
    if not pictures:
        return wrapped_logits(parts, inputs)[:, -1:]
    mask = inputs["attention_mask"]
    with nullcontext() if mask is None else override_mask(parts.decoder, mask):
        made = parts.model(**inputs | {"attention_mask": None} | pictures, return_dict=True)
    return made.logits[:, -1:]


def rotary_positions(positions: Tensor) -> Tensor:
    """Positions that reach rotary tables: of the four axes of M-RoPE the first is the text's, which only masks read."""
    return positions[1:] if positions.dim() == 3 and positions.shape[0] == 4 else positions
