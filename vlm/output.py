"""What a call returns: sequences, statistics and errors, with transformers' cache filled behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, StaticCache
from transformers.cache_utils import DynamicLayer, StaticLayer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec.core.cache import StateLayer
from mmspec.core.draft import Draft, Law
from mmspec.core.loop import DecodingRun
from mmspec.core.stats import Stats
from mmspec.core.tree import uncached_chain
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.target import TextTarget

# implementations that give the text of a dynamic cache: they differ in where and how long tensors are kept
_SAME_TEXT = ("dynamic", "offloaded", "static", "offloaded_static", "sliding_window", "hybrid", "hybrid_chunked",
              "offloaded_hybrid", "offloaded_hybrid_chunked")  # fmt: skip


def check_implementation(name: object) -> None:
    """Raises ValueError for a `cache_implementation` that changes the text, as a quantized cache does."""
    if name is not None and name not in _SAME_TEXT:
        raise ValueError(f"cache_implementation: expected one that keeps keys and values as they are, such as 'dynamic', got "
                         f"{name!r}; leave it out, or decode with model.generate")  # fmt: skip


def cache_to_fill(cache: object, inputs: Mapping[str, object] | None, config: GenerationConfig) -> Cache | None:
    """The cache that a call has to fill, None where it fills none.

    transformers makes a cache for every call, in the layout of the class. It is handed back with `return_dict_in_generate`.
    A cache that the caller gave is filled in any case.

    Args:
        cache: the call's `past_key_values`.
        inputs: the arguments of the call as the caller gave them; None where they are not known.
        config: the call's settings.

    Raises:
        ValueError: for a caller's cache with content, and for one of a class whose text or layout is not known.
    """
    if cache is None or isinstance(cache, Past):
        return None
    if inputs is not None and inputs.get("past_key_values") is not cache:
        return cache if config.return_dict_in_generate and config.use_cache else None
    name = type(cache).__name__
    if type(cache) not in (DynamicCache, StaticCache):
        raise ValueError(f"past_key_values: expected a DynamicCache or a StaticCache, got a {name}; leave it out")
    if any(_filled(layer) for layer in cache.layers):
        raise ValueError("past_key_values: expected none or an empty cache, or that of a mmspec.Session, got a "
                         f"{name} with content; send the whole prompt without it")  # fmt: skip
    return cache


def check_layout(cache: Cache, target: TextTarget) -> None:
    """Raises ValueError where a request's keys, values and states do not fit into the layers of `cache`, or may not be those
    of its tokens: a criterion may end one row behind another, and recurrent layers do not go back."""
    if target.parts.plan.stateful and target.stopping.others and target.batch > 1:
        raise ValueError("stopping_criteria: expected eos ids and lengths alone beside a returned cache with recurrent "
                         "states, got others in a batch; send the rows one by one")  # fmt: skip
    for index in target.parts.plan.stateful:
        if index >= len(cache.layers) or not hasattr(cache.layers[index], "update_conv_state"):
            raise ValueError(f"past_key_values: expected a cache with layers for recurrent states, got a "
                             f"{type(cache).__name__} without them; write DynamicCache(config=model.config)")  # fmt: skip
    fixed = [layer for layer in cache.layers if isinstance(layer, StaticLayer) and not layer.is_sliding]
    room = min((layer.max_cache_len for layer in fixed), default=None)
    if room is not None and (target.most is None or target.prompt.shape[1] + target.most - 1 > room):
        most = "no limit" if target.most is None else target.prompt.shape[1] + target.most - 1
        raise ValueError(f"past_key_values: expected a cache with room for prompt and answer, {most} tokens, got one for "
                         f"{room}; make a larger one")  # fmt: skip


@torch.no_grad()
def fill_cache(cache: Cache, target: TextTarget) -> None:
    """Puts into `cache` what a finished request holds: all tokens of the longest row but the last, padding included.

    Every row has to be as long, see `output.complete`. Keys and values of layers that see all tokens are views into
    the request's own pool, so that nothing is copied.
    """
    held = target.cache
    for index, layer in enumerate(target.parts.plan.layers):
        own = held.layers[index]
        if isinstance(own, StateLayer):
            for number, window in own.committed.conv.items():
                cache.layers[index].update_conv_state(window, number)
            for number, states in own.committed.recurrent.items():
                cache.layers[index].update_recurrent_state(states, number)
        if layer.slots and own.is_initialized:
            _put(cache, index, *(one[:, :, : held.width] for one in held.at(index)))
        elif layer.kind == "cross" and own.is_initialized:
            _put(cache, index, own.keys, own.values)


def _put(cache: Cache, index: int, keys: Tensor, values: Tensor) -> None:
    """Fills one empty layer. keys, values: [B, heads, L, dim]."""
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


def _filled(layer: object) -> bool:
    """Whether a layer of a cache holds tokens or states."""
    states = getattr(layer, "has_previous_state", {})
    return any(states.values()) or (hasattr(layer, "get_seq_length") and int(layer.get_seq_length()) > 0)


_WIDEST = 64  # tokens of a pass over padding, whose logits then need little more memory than those that are kept


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """transformers' own output class with the speculative statistics beside it.

    sequences: int64 [B, L], laid out as `transformers.generate` lays it out.
    past_key_values: with `return_dict_in_generate`, transformers' own cache of the sequences without their last token, with
        which the class's `generate` goes on; in a conversation the conversation; None where a row failed.
    read: tokens of the prompt that passed through the model; in a conversation those that were new.
    stats: the request's Stats.   errors: per failed row, one sentence (None when all went well).
    """

    read: int | None = None
    stats: Stats | None = None
    errors: dict[int, str] | None = None


class RowsFailed(ValueError):
    """Some rows met NaN or Inf logits, or had no token left to draw. `partial` is the Generated result: finished rows
    whole, failed rows cut short."""

    def __init__(self, partial: Generated):
        super().__init__("; ".join(partial.errors.values()) + "; other rows are complete in the error's `partial`")
        self.partial = partial


def collect(
    target: TextTarget, stats: Stats, *, scores: bool = False, logits: bool = False, cache: Cache | None = None
) -> Generated:
    """The result of a finished request."""
    longest = max(target.emitted)
    tail = [t + [target.pad] * (longest - len(t)) for t in target.tokens]
    tail = torch.tensor(tail, dtype=target.prompt.dtype, device=target.device).reshape(target.batch, longest)
    return Generated(
        sequences=torch.cat([target.prompt, tail], 1),
        scores=_steps(target.scores, longest) if scores else None,
        logits=_steps(target.logits, longest) if logits else None,
        past_key_values=cache,
        read=target.read,
        stats=stats,
        errors=target.errors or None,
    )


def _steps(rows: list[list[Tensor]], longest: int) -> tuple[Tensor, ...]:
    """Per generated position [B, V]; NaN behind the end of a row that failed."""
    blank = next((torch.full_like(row[0], torch.nan) for row in rows if row), None)
    return tuple(torch.stack([row[i] if i < len(row) else blank for row in rows]) for i in range(longest))


def complete(decoding: DecodingRun, cache: Cache | None) -> Cache | None:
    """Gives a finished request what transformers adds behind rows that ended early, and fills `cache`; None where a row
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
    """Lets a finished request read the padding behind rows that ended early, as far as the longest row was read.

    Scores, logits and keys of these rows are then those of transformers. The padding is known, so that a pass reads many
    tokens at once. Rows that failed are left as they are.

    Args:
        target: the request; one that `goes_on`, see `TextTarget`.

    Returns:
        The number of passes, 0 where all rows are of one length.
    """
    longest, passes = max(target.emitted), 0
    _forget_cut_rows(target)
    while count := min(max(_lacks(target, longest)), _WIDEST):
        rows = [tokens[-1:] or [target.pad] for tokens in target.tokens]
        value = torch.tensor([row + [target.pad] * (count - 1) for row in rows], device=target.device)
        draft = Draft(value, uncached_chain(count, target.device), Law("none"))
        target.read_on(draft, [min(lack, count) for lack in _lacks(target, longest)])
        passes += 1
    return passes


def _forget_cut_rows(target: TextTarget) -> None:
    """Takes tokens out of the cache that a row had read when a stopping criterion ended it further back."""
    held, start = target.cache.lengths, target.prompt.shape[1]
    wanted = [min(n, start + max(count - 1, 0)) for n, count in zip(held, target.emitted, strict=True)]
    if wanted != held:
        back = torch.tensor(held, device=target.device) - torch.tensor(wanted, device=target.device)
        target.next_position = target.next_position - back
        target.cache.cut(wanted)


def _lacks(target: TextTarget, longest: int) -> list[int]:
    """Per row, the tokens of padding that it has not read."""
    return [0 if row in target.errors else longest - count for row, count in enumerate(target.emitted)]
