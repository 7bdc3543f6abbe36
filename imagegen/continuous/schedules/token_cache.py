"""The tokens of a decoder that a pass computes, and the cache of the others: the token cache of one request."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.draft import gather_nodes

KeysValues = tuple[Tensor, Tensor]


def own_tokens(keys: Tensor, values: Tensor) -> KeysValues:
    """Attention over the keys and values of the tokens at hand."""
    return keys, values


class DecoderPass:
    """One pass in which all tokens are computed and nothing is kept.

    A decoder hands `enter` the inputs of all tokens, N with its buffer, float [R, N, width], and computes what it is given
    back, [R, Q, width]; every layer's attention takes its keys and values [R, heads, Q, size] through `layer(number)`, which
    gives those of all tokens; `leave` makes outputs of all tokens of those computed.
    """

    def enter(self, x: Tensor) -> Tensor:
        return x

    def layer(self, number: int) -> Callable[[Tensor, Tensor], KeysValues]:
        return own_tokens

    def leave(self, x: Tensor) -> Tensor:
        return x


FULL_PASS = DecoderPass()


class TokenCache:
    """What was last computed of every token of a decoder, for one request.

    "LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching". Relaxed: the keys and values of tokens that a
    pass leaves out are those of the pass that computed them last, and so are their outputs.
    share: of all tokens, from 0 to 1, that are computed beside those that must be, see `least_similar`.
    computed: of every partial pass, how many tokens each row computed.
    """

    def __init__(self, share: float):
        self.share = share
        self.computed: list[list[int]] = []
        self.inputs: _TokenStore | None = None
        self.layers: dict[int, tuple[_TokenStore, _TokenStore]] = {}
        self.outputs: _TokenStore | None = None

    def whole(self, rows: int | None = None) -> DecoderPass:
        """A pass that computes all tokens and keeps what it computes of its first `rows` rows, None for all."""
        return _FullPass(self, rows)

    def part(self, must: Tensor) -> DecoderPass:
        """A pass that computes some tokens, of as many rows as the last whole one kept.

        must: bool [B, L], which of the last L tokens, behind the buffer, are computed in any case; for passes of
        several branches, B rows each, in each of them.
        """
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
    """A tensor [R, ..., N, size] of all tokens, with one place more, which takes what has none."""

    def __init__(self, x: Tensor):
        self.all = F.pad(x, (0, 0, 0, 1))
        self.now = self.all[..., :-1, :]

    def put(self, x: Tensor, place: Tensor) -> Tensor:
        """All tokens with x [R, ..., Q, size] at place int64 [R, Q]."""
        index = place.view(len(place), *[1] * (x.dim() - 3), -1, 1).expand_as(x)
        self.all.scatter_(-2, index, x)
        return self.now


def least_similar(x: Tensor, last: Tensor, must: Tensor, share: float) -> tuple[Tensor, list[int]]:
    """The tokens of each row to be computed, int64 [R, Q], with N where a row has fewer than the most; and how many each has.

    Those of `must` bool [R, N], and beside them the ceil(share N) whose inputs x float [R, N, width] have the lowest cosine
    with `last`, the inputs they were last computed from. At which layer the paper reads likeness is not known
    to us: the decoder's input, positions included, is our choice. A row's choice depends on no other row.
    """
    total = x.shape[1]
    like = F.cosine_similarity(x.float(), last.float(), dim=-1).clamp_max(1)
    like = like.masked_fill((x == last).all(-1), 1)  # rounding must not say which of the unchanged come first
    order = like.masked_fill(must, -math.inf).argsort(dim=1, stable=True)
    count = (must.sum(1) + math.ceil(share * total)).clamp_max(total)
    counts = count.tolist()  # the shape of the pass
    place = order[:, : max(counts)]
    there = torch.arange(place.shape[1], device=x.device) < count[:, None]
    return torch.where(there, place, total), counts
