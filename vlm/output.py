"""The result of a call: sequences, statistics and errors, and transformers' cache, filled with the request's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, StaticCache
from transformers.cache_utils import DynamicLayer, StaticLayer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec.core.layers.compat import CACHE, read_by_number
from mmspec.core.round.cache import StateLayer
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.loop import DecodingRun
from mmspec.core.round.stats import Stats
from mmspec.core.round.tree import uncached_chain
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.target import TextTarget

# implementations with the same output as a dynamic cache: they differ only in where and how long they store tensors
_SAME_TEXT = ("dynamic", "offloaded", "static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked",
              "offloaded_hybrid", "offloaded_hybrid_chunked")  # fmt: skip


def check_implementation(name: object) -> None:
    """Refuse a `cache_implementation` with other keys and values than a dynamic cache, such as a quantized cache."""
    if name is not None and name not in _SAME_TEXT:
        raise ValueError(
            f"cache_implementation: expected an implementation that keeps keys and values as they are, such as "
            f"'dynamic', got {name!r}; leave it out, or decode with model.generate"
        )


def cache_to_fill(cache: object, inputs: Mapping[str, object] | None, config: GenerationConfig) -> Cache | None:
    """Return the cache that a call has to fill, None if there is none. transformers creates a cache in the class's
    layout for every call and returns it with `return_dict_in_generate`. A cache that the caller passed is always
    filled; tokens in it are read again, see `check_content`. `inputs` are the caller's arguments, None if they are
    unknown."""
    if cache is None or isinstance(cache, Past):
        return None
    if inputs is not None and inputs.get(CACHE) is not cache:
        return cache if config.return_dict_in_generate and config.use_cache else None
    name = type(cache).__name__
    if type(cache) not in (DynamicCache, StaticCache):
        raise ValueError(f"past_key_values: expected a DynamicCache or a StaticCache, got a {name}; leave it out")
    return cache


def tokens_in(cache: Cache | None) -> int:
    layers = () if cache is None else cache.layers
    counts = [int(layer.get_seq_length()) for layer in layers if hasattr(layer, "get_seq_length")]
    # a cache of states alone does not count its tokens
    states = [read_by_number(getattr(layer, "has_previous_state", False)) for layer in layers]
    return max([*counts, *(1 for by_number in states if any(by_number.values()))], default=0)


def check_prompt(cache: Cache, ids: Tensor, inputs: Mapping[str, object] | None) -> None:
    """Check that a prompt, ids int64 [B, P], is longer than the cached tokens, which are read again as its beginning."""
    known, mask = tokens_in(cache), (inputs or {}).get("attention_mask")
    is_part = isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] != ids.shape[1]
    if inputs is None or is_part or ids.shape[1] <= known:
        raise ValueError(
            "past_key_values: expected none or an empty cache, or that of a mmspec.Session, got a "
            f"{type(cache).__name__} with content, {known} tokens, for a prompt of {ids.shape[1]}; send the "
            "whole prompt, cached and new tokens"
        )


# rounding differs between passes of one token and of many; keys of other tokens differ by about their own norm
_NEAR = {torch.float32: 0.01, torch.float64: 0.01}
_NEAR_HALF = 0.1


def check_content(cache: Cache, target: TextTarget) -> None:
    """Check that the keys in a caller's cache are those of the prompt's first tokens, which `target` has read again, as
    transformers would continue from any cache. States alone are refused, since they do not show their tokens."""
    known, compared = tokens_in(cache), 0
    real = None if target.padding is None else ~target.padding[:, None, :known, None]
    for index, layer in enumerate(target.parts.plan.layers):
        stored = cache.layers[index] if index < len(cache.layers) else None
        if not layer.slots or stored is None or not getattr(stored, "is_initialized", False):
            continue
        last = min(known, stored.keys.shape[2])  # of a window, the last tokens
        for theirs, own in zip((stored.keys, stored.values), target.cache.at(index), strict=True):
            own, theirs = own[:, :, known - last : known].float(), theirs[:, :, :last].to(own.device).float()
            if theirs.shape == own.shape and real is not None:
                seen = real[:, :, known - last :].to(own.device)
                own, theirs = own * seen, theirs * seen
            near = _NEAR.get(target.dtype, _NEAR_HALF)
            if theirs.shape != own.shape or not (theirs - own).norm() <= near * own.norm():
                raise ValueError(
                    "past_key_values: expected none or an empty cache, or that of the prompt's first tokens, "
                    f"got others in layer {index}; send the whole prompt without it"
                )
            compared += 1
    if not compared:
        raise ValueError(
            f"past_key_values: expected a cache with the keys of its tokens, got a {type(cache).__name__} with "
            "states alone; send the whole prompt without it"
        )


def check_layout(cache: Cache, target: TextTarget) -> None:
    """Check that the layers of `cache` can store a request's tokens. States do not allow a stopping criterion to cut
    rows back."""
    if target.parts.plan.stateful and target.stopping.others and target.batch > 1:
        raise ValueError(
            "stopping_criteria: expected only eos ids and lengths with a returned cache of recurrent states, "
            "got other criteria in a batch; send the rows one by one"
        )
    for index in target.parts.plan.stateful:
        if index >= len(cache.layers) or not hasattr(cache.layers[index], "update_conv_state"):
            raise ValueError(
                f"past_key_values: expected a cache with layers for recurrent states, got a "
                f"{type(cache).__name__} without them; write DynamicCache(config=model.config)"
            )
    fixed = [layer for layer in cache.layers if isinstance(layer, StaticLayer) and not layer.is_sliding]
    room = min((layer.max_cache_len for layer in fixed), default=None)
    if room is not None and (target.most is None or target.length + target.most - 1 > room):
        most = "no limit" if target.most is None else target.length + target.most - 1
        raise ValueError(
            f"past_key_values: expected a cache with room for prompt and answer, {most} tokens, got room for "
            f"{room}; pass a larger cache"
        )


@torch.no_grad()
def fill_cache(cache: Cache, target: TextTarget) -> None:
    """Replace the content of `cache` by a finished request's tokens but the last, padding included. All rows need the
    same length, see `complete`. Keys and values of full attention are views into the request's own pool, so nothing is
    copied."""
    held = target.cache
    for layer in cache.layers:
        _empty(layer)
    for index, layer in enumerate(target.parts.plan.layers):
        own = held.layers[index]
        if isinstance(own, StateLayer):
            for number, window in own.committed.conv.items():
                cache.layers[index].update_conv_state(window, state_idx=number)
            for number, states in own.committed.recurrent.items():
                cache.layers[index].update_recurrent_state(states, state_idx=number)
        if layer.slots and own.is_initialized:
            _put(cache, index, *(tensor[:, :, : held.width] for tensor in held.at(index)))
        elif layer.kind == "cross" and own.is_initialized:
            _put(cache, index, own.keys, own.values)


def _put(cache: Cache, index: int, keys: Tensor, values: Tensor) -> None:
    """Fill an empty layer with keys and values [B, heads, L, dim]."""
    if cache.layer_class_to_replicate is not None:
        cache.layers.extend(cache.layer_class_to_replicate() for _ in range(index + 1 - len(cache.layers)))
    layer = cache.layers[index]
    if type(layer) is DynamicLayer:
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
    else:
        layer.update(keys, values)
    if cache.offloading:
        cache.offload(index, cache.only_non_sliding)


def _empty(layer: object) -> None:
    if isinstance(layer, DynamicLayer):
        layer.is_initialized = False  # `reset` would zero its tokens and keep their number
    if hasattr(layer, "reset"):
        layer.reset()


_WIDEST = 64  # tokens of a pass over padding; limits the memory of its logits


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """transformers' output class with the statistics of drafting: `sequences` is int64 [B, L] in the layout of
    `transformers.generate`. `past_key_values` is the conversation, or with `return_dict_in_generate` transformers'
    cache without the last token, which the class's `generate` can continue; None if a row failed."""

    read: int | None = None  # prompt tokens that passed through the model; in a conversation, of the new tokens
    stats: Stats | None = None
    errors: dict[int, str] | None = None  # a sentence for each failed row; None if no row failed


class RowsFailed(ValueError):
    """Rows failed because of NaN or Inf logits, or because processors excluded every token. `partial` is the Generated
    result, with complete rows except those that failed."""

    def __init__(self, partial: Generated):
        super().__init__("; ".join(partial.errors.values()) + "; other rows are complete in the error's `partial`")
        self.partial = partial


def collect(
    target: TextTarget, stats: Stats, *, scores: bool = False, logits: bool = False, cache: Cache | None = None
) -> Generated:
    longest = max(target.emitted)
    tail = [t + [target.pad] * (longest - len(t)) for t in target.tokens]
    tail = torch.tensor(tail, dtype=target.prompt.dtype, device=target.device).reshape(target.batch, longest)
    return Generated(
        sequences=torch.cat([target.prompt, tail], 1),
        scores=_steps(target.scores, longest) if scores else None,
        logits=_steps(target.logits, longest) if logits else None,
        read=target.read,
        stats=stats,
        errors=target.errors or None,
        **{CACHE: cache},
    )


def _steps(rows: list[list[Tensor]], longest: int) -> tuple[Tensor, ...]:
    """Return [B, V] for every generated position, with NaN after the end of a failed row."""
    blank = next((torch.full_like(row[0], torch.nan) for row in rows if row), None)
    return tuple(torch.stack([row[i] if i < len(row) else blank for row in rows]) for i in range(longest))


def complete(decoding: DecodingRun, cache: Cache | None) -> Cache | None:
    """Read the padding after rows that ended early, as transformers does, and fill and return `cache`; None if a row
    failed."""
    target, stats = decoding.target, decoding.stats
    if target.keep_scores or cache is not None:
        with stats.time("target"):
            stats.target_passes += _read_padding(target)
    if cache is None or target.errors:
        return None
    fill_cache(cache, target)
    return cache


@torch.no_grad()
def _read_padding(target: TextTarget) -> int:
    """Read the padding after rows that ended early, and return the number of passes. Scores, logits and keys of these
    rows then equal those of transformers. The padding is known, so a pass reads many tokens, unless users' code
    surrounds modules. Failed rows do not change. The target needs `goes_on`, see `GeneratedRows`."""
    longest, passes, widest = max(target.emitted), 0, 1 if target.parts.code else _WIDEST
    _forget_cut_rows(target)
    while count := min(max(_lacks(target, longest)), widest):
        rows = [tokens[-1:] or [target.pad] for tokens in target.tokens]
        value = torch.tensor([row + [target.pad] * (count - 1) for row in rows], device=target.device)
        draft = Draft(value, uncached_chain(count, target.device), Law("none"))
        target.read_on(draft, [min(lack, count) for lack in _lacks(target, longest)])
        passes += 1
    return passes


def _forget_cut_rows(target: TextTarget) -> None:
    """Remove cached tokens that a row had read beyond the place where a stopping criterion ended it."""
    held, start = target.cache.lengths, target.length
    wanted = [min(n, start + max(count - 1, 0)) for n, count in zip(held, target.emitted, strict=True)]
    if wanted != held:
        back = torch.tensor(held, device=target.device) - torch.tensor(wanted, device=target.device)
        target.next_position = target.next_position - back
        target.cache.cut(wanted)


def _lacks(target: TextTarget, longest: int) -> list[int]:
    return [0 if row in target.errors else longest - count for row, count in enumerate(target.emitted)]
