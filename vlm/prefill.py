"""The prefill: the inputs of a prompt as the model class prepares them, and the passes that read it. The class's own
forward reads the first tokens. Tokens after committed tokens are read like a draft: as a chain of known tokens, with
our own masks and the closed forms of recurrent layers, and all of them are committed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import LayerPlan, attention_masks
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.tree import uncached_chain
from mmspec.vlm.architectures import Parts
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.hidden_states import RecordedStates, override_mask, record_states
from mmspec.vlm.mixers import tree_passes

_NOT_PROMPT = {"streamer", "logits_processor", "stopping_criteria", "generation_config", "prefix_allowed_tokens_fn",
               "custom_generate", "tokenizer", CACHE, "assistant_model", "synced_gpus"}  # fmt: skip
# default settings of a model that need a tokenizer
PROMPT_ALONE = {"stop_strings": None, "token_healing": False}


def prompt_inputs(inputs: dict | None, config: GenerationConfig) -> dict | None:
    """Return the prompt among the arguments of a `generate` call: ids, masks, pictures, and the copies of each row."""
    if inputs is None:
        return None
    prompt = {k: v for k, v in inputs.items() if v is not None and k not in _NOT_PROMPT and not hasattr(config, k)}
    return prompt | {"num_return_sequences": config.num_return_sequences or 1}


def with_healed_ids(inputs: dict | None, ids: Tensor, config: GenerationConfig) -> dict | None:
    """Return the arguments of a `generate` call with the prompt's ids int64 [B, P] after token healing."""
    if inputs is None or not config.token_healing:
        return inputs
    copies = config.num_return_sequences or 1
    return {name: value for name, value in inputs.items() if name != "inputs"} | {"input_ids": ids[::copies]}


def prepare_inputs(model: nn.Module, inputs: dict) -> tuple[Tensor, dict]:
    """Return the ids [B, P] and the arguments of the first pass that `model.generate` prepares from a prompt of
    `prompt_inputs`. The vision tower runs if the prompt has pictures."""
    return class_generate(model)(**inputs, **PROMPT_ALONE, do_sample=True, max_new_tokens=1, custom_generate=_prepared)


def first_inputs(parts: Parts, ids: Tensor, kwargs: dict, cache: SlotCache) -> dict:
    """Return the arguments of the pass that reads a prompt into `cache`; `kwargs` are those of `prepare_inputs`."""
    kwargs = kwargs | {CACHE: cache, "use_cache": True} | last_logits_only(parts, ids)
    inputs = parts.model.prepare_inputs_for_generation(ids, is_first_iteration=True, **kwargs)
    # some classes drop an empty cache and would create their own
    return inputs | {CACHE: cache}


def last_logits_only(parts: Parts, ids: Tensor) -> dict:
    """Return the argument that limits a forward over `ids` [B, n] to the last logits; empty if it has none."""
    if not parts.last_only:
        return {}
    if any(layer.kind == "shared" for layer in parts.plan.layers):
        # with a number, layers that share a cache would skip the prompt, whose states drafters read
        return {"logits_to_keep": ids.new_tensor([ids.shape[1] - 1])}
    return {"logits_to_keep": 1}


def first_tokens(kwargs: dict, count: int) -> dict:
    """Cut the `kwargs` of `prepare_inputs` for an unpadded prompt to its first tokens, which include all pictures."""
    alike = ("position_ids", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
    return {
        name: value[..., :count] if name in alike and value is not None else value for name, value in kwargs.items()
    }


def first_positions(inputs: dict, ids: Tensor, default: Tensor | None) -> Tensor:
    """Return the positions of a prompt, int64 [..., B, P] or [1, P]; `ids` is int64 [B, P], `inputs` the result of
    `first_inputs`. `default` replaces missing position_ids. Where there is none either, as for a replaced forward that
    does not name them, the positions are slots, padding included."""
    positions, embeds = inputs.get("position_ids", default), inputs.get("inputs_embeds")
    count = ids.shape[1] if embeds is None else embeds.shape[1]
    return torch.arange(count, device=ids.device)[None] if positions is None else positions


def lasting_inputs(plan: LayerPlan, inputs: dict) -> dict[str, Tensor]:
    """Return the prompt inputs that later passes need too: the pictures that the last token sees, [B, 1, ...]."""
    seen = inputs.get("cross_attention_mask") if any(layer.kind == "cross" for layer in plan.layers) else None
    return {} if seen is None else {"cross_attention_mask": seen[:, -1:]}


def wrapped_logits(parts: Parts, inputs: dict) -> Tensor:
    """Return the logits [B, N, V] of a pass through the model's wrapper, with the mask of `attention_masks`. A hook
    gives the decoder a mask for each type of layer, because wrappers pass only one mask."""
    mask = inputs["attention_mask"]
    if not isinstance(mask, dict):
        return parts.model(**inputs, return_dict=True).logits
    with override_mask(parts.decoder, mask):
        return parts.model(**inputs | {"attention_mask": mask["full_attention"]}, return_dict=True).logits


def _prepared(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None, **model_kwargs):
    return input_ids, model_kwargs


_LONGEST = 256  # most tokens that layers with states read in a pass: the memory of the closed form grows quadratically


@dataclass(slots=True)
class PrefillResult:
    logits: Tensor  # float [B, 1, V], after the last token
    embeds: Tensor  # float [B, n, H], the input embeddings, see `RecordedStates`
    hidden: Tensor  # float [B, n, F], the hidden states, or those of the chosen levels

    @classmethod
    def of(cls, logits: Tensor, seen: RecordedStates, device: torch.device) -> Self:
        hidden = seen.hidden if seen.levels is None else seen.levels
        return cls(*(tensor.to(device) for tensor in (logits[:, -1:], seen.embeds, hidden)))

    def then(self, other: PrefillResult) -> PrefillResult:
        embeds, hidden = (torch.cat(pair, 1) for pair in ((self.embeds, other.embeds), (self.hidden, other.hidden)))
        return PrefillResult(other.logits, embeds, hidden)


@dataclass(frozen=True, slots=True)
class UnreadPrompt:
    """The part of a prompt that is not in the cache yet."""

    ids: Tensor  # int64 [1, n]
    positions: Tensor  # int64 [..., 1, n]
    sees: Tensor  # bool [1, n, n], the tokens among them that each token sees
    pictures: Mapping[str, object]  # the forward's arguments for their pictures; empty without pictures
    lasting: Mapping[str, Tensor]  # the prompt inputs of every pass, see `lasting_inputs`

    @classmethod
    def text(cls, ids: Tensor, positions: Tensor, lasting: Mapping[str, Tensor]) -> Self:
        count = ids.shape[1]
        sees = torch.ones(1, count, count, dtype=torch.bool, device=ids.device).tril()
        return cls(ids, positions, sees, {}, lasting)

    def part(self, first: int, end: int, pictures: Mapping[str, object] | None = None) -> UnreadPrompt:
        """Return the tokens from `first` to `end`, which see no later token; `pictures` are theirs."""
        span = slice(first, end)
        sees, positions = self.sees[:, span, span], self.positions[..., span]
        return replace(self, ids=self.ids[:, span], positions=positions, sees=sees, pictures=pictures or {})

    def split(self, count: int) -> list[UnreadPrompt]:
        """Split after the first `count` tokens, which include all pictures."""
        return [self.part(0, count, self.pictures), self.part(count, self.ids.shape[1])]

    def parts(self, stateful: bool) -> list[UnreadPrompt]:
        count = self.ids.shape[1]
        if not stateful or self.pictures or count <= _LONGEST:
            return [self]
        return [self.part(first, min(first + _LONGEST, count)) for first in range(0, count, _LONGEST)]


def read_first(parts: Parts, inputs: dict, levels: tuple[int, ...] | None, device: torch.device) -> PrefillResult:
    """Run the pass over a prompt from its first token; `inputs` is the result of `first_inputs`, with the empty cache."""
    with record_states(parts.decoder, levels) as seen:
        logits = parts.model(**inputs, return_dict=True).logits
    return PrefillResult.of(logits, seen, device)


def read_rest(parts: Parts, cache: SlotCache, rest: UnreadPrompt, levels: tuple[int, ...] | None) -> PrefillResult:
    result = None
    for part in rest.parts(bool(parts.plan.stateful)):
        read = _read_chunk(parts, cache, part, levels)
        result = read if result is None else result.then(read)
    return result


def _read_chunk(parts: Parts, cache: SlotCache, rest: UnreadPrompt, levels: tuple[int, ...] | None) -> PrefillResult:
    count = rest.ids.shape[1]
    tree, dtype = uncached_chain(count, rest.ids.device), parts.dtype
    inputs = dict(
        input_ids=rest.ids,
        position_ids=rest.positions,
        attention_mask=attention_masks(parts.plan, cache, rest.sees, tree.depth, tree.max_depth, dtype),
        use_cache=True,
        **{CACHE: cache},
    )
    inputs |= {name: value.expand(-1, count, *value.shape[2:]) for name, value in rest.lasting.items()}
    with tree_passes(parts.mixers, cache, tree), record_states(parts.decoder, levels) as seen:
        logits = _logits(parts, inputs, rest.pictures)
    cache.commit([list(range(count))])
    return PrefillResult.of(logits, seen, rest.ids.device)


def _logits(parts: Parts, inputs: dict, pictures: Mapping[str, object]) -> Tensor:
    """Return the logits [1, 1, V] after the last token; only the wrapper merges the features of pictures."""
    if not pictures and parts.direct:
        return parts.head(parts.decoder(**inputs).last_hidden_state[:, -1:])
    inputs = inputs | last_logits_only(parts, inputs["input_ids"])
    if not pictures:
        return wrapped_logits(parts, inputs)[:, -1:]
    mask = inputs["attention_mask"]
    with nullcontext() if mask is None else override_mask(parts.decoder, mask):
        output = parts.model(**inputs | {"attention_mask": None} | pictures, return_dict=True)
    return output.logits[:, -1:]


def rotary_positions(positions: Tensor) -> Tensor:
    """Return the positions for rotary embeddings: of four M-RoPE axes, the first is for masks only."""
    return positions[1:] if positions.dim() == 3 and positions.shape[0] == 4 else positions
