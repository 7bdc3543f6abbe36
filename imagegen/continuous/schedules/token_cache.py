"""The decoder tokens that a pass computes, and the cache of the other tokens of a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.round.draft import gather_nodes

KeysValues = tuple[Tensor, Tensor]


def own_tokens(keys: Tensor, values: Tensor) -> KeysValues:
    """Return the keys and values unchanged: attention over the computed tokens only."""
    return keys, values


class DecoderPass:
    """A pass that computes all tokens and caches nothing. A decoder passes the inputs of all tokens float [R, N,
    width], buffer included, to `enter`, and computes the tokens [R, Q, width] returned. In each layer `layer(number)`
    extends keys and values [R, heads, Q, size] to all tokens, and `leave` the outputs."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def layer(self, number: int) -> Callable[[Tensor, Tensor], KeysValues]:
        return own_tokens

    def leave(self, x: Tensor) -> Tensor:
        return x


FULL_PASS = DecoderPass()


class TokenCache:
    """The last computed state of every token of a decoder, for a request. Relaxed. "LazyMAR: Accelerating Masked
    Autoregressive Models via Feature Caching". Tokens that a pass leaves out have their last keys, values and outputs.
    The share 0..1 of all tokens is computed besides the required tokens, see `least_similar`."""

    def __init__(self, share: float):
        self.share = share
        self.computed: list[list[int]] = []  # tokens per row, for every partial pass
        self.inputs: _TokenStore | None = None
        self.layers: dict[int, tuple[_TokenStore, _TokenStore]] = {}
        self.outputs: _TokenStore | None = None

    def whole(self, rows: int | None = None) -> DecoderPass:
        """Return a pass that computes all tokens and caches its first `rows` rows, None for all."""
        return _FullPass(self, rows)

    def part(self, must: Tensor) -> DecoderPass:
        """Return a pass that computes the tokens `must` bool [B, L] behind the buffer in every branch, and some others,
        in as many rows as the last complete pass cached."""
        return _PartialPass(self, must)


class _FullPass(DecoderPass):
    def __init__(self, cache: TokenCache, rows: int | None):
        self.cache, self.rows = cache, rows

    def enter(self, x: Tensor) -> Tensor:
        self.cache.inputs = _TokenStore(x[: self.rows])
        return x

    def layer(self, number: int) -> Callable[[Tensor, Tensor], KeysValues]:
        return partial(self._keep, number)

    def _keep(self, number: int, keys: Tensor, values: Tensor) -> KeysValues:
        self.cache.layers[number] = _TokenStore(keys[: self.rows]), _TokenStore(values[: self.rows])
        return keys, values

    def leave(self, x: Tensor) -> Tensor:
        self.cache.outputs = _TokenStore(x[: self.rows])
        return x


class _PartialPass(DecoderPass):
    def __init__(self, cache: TokenCache, must: Tensor):
        self.cache, self.must = cache, must

    def enter(self, x: Tensor) -> Tensor:
        rows, total = x.shape[:2]
        must = self.must.repeat(rows // len(self.must), 1)
        must = F.pad(must, (total - must.shape[1], 0))
        inputs = self.cache.inputs
        self.place, counts = least_similar(x, inputs.now, must, self.cache.share)
        self.cache.computed.append(counts)
        chosen = gather_nodes(x, self.place.clamp_max(total - 1))
        inputs.put(chosen, self.place)
        return chosen

    def layer(self, number: int) -> Callable[[Tensor, Tensor], KeysValues]:
        return partial(self._put, number)

    def _put(self, number: int, keys: Tensor, values: Tensor) -> KeysValues:
        stored_keys, stored_values = self.cache.layers[number]
        return stored_keys.put(keys, self.place), stored_values.put(values, self.place)

    def leave(self, x: Tensor) -> Tensor:
        return self.cache.outputs.put(x, self.place)


class _TokenStore:
    """A tensor [R, ..., N, size] of all tokens, with a spare place for padding."""

    def __init__(self, x: Tensor):
        self.all = F.pad(x, (0, 0, 0, 1))
        self.now = self.all[..., :-1, :]

    def put(self, x: Tensor, place: Tensor) -> Tensor:
        """Write x [R, ..., Q, size] at places int64 [R, Q] and return all tokens."""
        index = place.view(len(place), *[1] * (x.dim() - 3), -1, 1).expand_as(x)
        self.all.scatter_(-2, index, x)
        return self.now


def least_similar(x: Tensor, last: Tensor, must: Tensor, share: float) -> tuple[Tensor, list[int]]:
    """Return the tokens of each row to compute, int64 [R, Q] filled with N, and their numbers: `must` bool [R, N] and
    the ceil(share N) others whose inputs x float [R, N, width] have the lowest cosine similarity to `last`. The paper
    names no layer; we compare the decoder's input, positions included. Rows choose on their own."""
    total = x.shape[1]
    like = F.cosine_similarity(x.float(), last.float(), dim=-1).clamp_max(1)
    like = like.masked_fill((x == last).all(-1), 1)  # so that rounding does not order the unchanged tokens
    order = like.masked_fill(must, -math.inf).argsort(dim=1, stable=True)
    count = (must.sum(1) + math.ceil(share * total)).clamp_max(total)
    counts = count.tolist()  # the shape of the pass
    place = order[:, : max(counts)]
    there = torch.arange(place.shape[1], device=x.device) < count[:, None]
    return torch.where(there, place, total), counts
