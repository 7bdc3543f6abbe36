"""Counter-based random numbers: a value is a pure function of (seed of the row, round, purpose, node, lane). So a row's
numbers depend neither on other rows nor on requests in between, and a residual never shares noise with a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod

import torch
from torch import Tensor

from mmspec.io.validation import whole
from mmspec.kernels.counter import GOLDEN, mix, mix_int, shift, uniforms
from mmspec.kernels.dispatch import on_kernels

_AHEAD = 2048  # numbers drawn at once for coming rounds


class Purpose(IntEnum):
    """The decision that a random number is for; each purpose is a separate stream."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    ORDER = 5


def _lanes(row: Tensor, lanes: int) -> Tensor:
    """Return float64 [..., lanes], the numbers of the streams with these keys, int64 [...]."""
    lane = torch.arange(1, lanes + 1, device=row.device) * GOLDEN
    return shift(mix(row[..., None] + lane), 11).double() * 2.0**-53


def _gumbel(uniform: Tensor) -> Tensor:
    return uniform.clamp(2.0**-53, 1 - 2.0**-53).log_().neg_().log_().neg_().float()


def _normal(uniform: Tensor) -> Tensor:
    return torch.special.ndtri(uniform.clamp(2.0**-53, 1 - 2.0**-53)).float()


@dataclass(slots=True)
class Keys:
    """The random numbers of one request.

    A drafter whose rows share phases of several rounds sets `round` at the start of a phase, to a number that no row
    can have reached in an earlier phase. Otherwise a row's numbers would depend on how long other rows took.

    Attributes:
        seeds: int64 [B].
        round: The current round, advanced by the loop.
        ahead: Small draws of several coming rounds and the first of these rounds. Drawing a few numbers takes thirty
            operations, as many as the rest of a verdict.
    """

    seeds: Tensor
    round: int = 0
    ahead: dict[Purpose, tuple[int, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(seed: int | Sequence[int] | None, batch: int, device: torch.device | str = "cpu") -> Keys:
        """Return the keys of a request: from an int, row b gets the seed of (seed, b); from a sequence, each row its
        own; from None, a seed of torch's global generator. A boolean is refused."""
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        if not isinstance(seed, Sequence) and getattr(seed, "ndim", 0) == 0:
            seed = whole("seed", seed)
            rows = torch.full((batch,), seed % 2**62, dtype=torch.int64) + mix(torch.arange(batch) * GOLDEN)
        else:
            if len(seed) != batch:
                raise ValueError(f"seed: expected one int or {batch} ints (one a row), got {len(seed)}")
            rows = torch.tensor([whole("seed", s) % 2**62 for s in seed], dtype=torch.int64)
        return Keys(mix(rows.to(device) + GOLDEN))

    def child(self, number: int) -> Keys:
        """Return the keys of a request inside this request for the same rows; each `number` from 0 up has its own streams."""
        return Keys(mix(self.seeds ^ mix_int(~number * 8 * 65536 * GOLDEN + 1)))

    def at(self, position: Tensor) -> Keys:
        """Return keys of the positions int64 [B, K] (from 0 up), B * K rows whose numbers stay the same in every round."""
        return Keys(mix(self.seeds[:, None] ^ mix(~position * 8 * 65536 * GOLDEN + 2)).flatten())

    def stream(self, purpose: Purpose, step: int = 0) -> int:
        """Return the number of this round's stream for a purpose, for ops that draw their own numbers."""
        return (self.round * 8 + int(purpose)) * 65536 + step

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        """Return float64 [B, *shape] in [0, 1) for this round and purpose; `step` separates draws within a round."""
        count = prod(shape)
        if step or count * len(self.seeds) > _AHEAD // 2 or on_kernels(self.seeds):
            return uniforms(self.seeds, self.stream(purpose, step), count).reshape(-1, *shape)
        first, numbers = self.ahead.get(purpose, (0, None))
        if numbers is None or not 0 <= self.round - first < numbers.shape[1] or count > numbers.shape[2]:
            lanes = 1 << (count - 1).bit_length()
            rounds = max(_AHEAD // (lanes * len(self.seeds)), 1)
            first, numbers = self.round, self._uniforms(purpose, range(self.round, self.round + rounds), lanes)
            self.ahead[purpose] = first, numbers
        return numbers[:, self.round - first, :count].reshape(-1, *shape)

    def _uniforms(self, purpose: Purpose, rounds: Sequence[int], lanes: int) -> Tensor:
        """Return float64 [B, R, lanes], the numbers of several rounds."""
        streams = [mix_int((round * 8 + int(purpose)) * 65536 * GOLDEN) for round in rounds]
        return _lanes(mix(self.seeds[:, None] ^ torch.tensor(streams, device=self.seeds.device)), lanes)

    def gumbel(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        """Return float32 [B, *shape], standard Gumbel noise."""
        return _gumbel(self.uniform(purpose, *shape, step=step))

    def gumbel_at(self, position: Tensor, lanes: int) -> Tensor:
        """Return float32 [B, K, lanes], noise of positions int64 [B, K] from 0 up, the same in every round, apart from
        `uniform`."""
        return _gumbel(self._uniform_at(position, lanes, 0))

    def normal(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        """Return float32 [B, *shape], standard normals."""
        return _normal(self.uniform(purpose, *shape, step=step))

    def normal_at(self, position: Tensor, lanes: int) -> Tensor:
        """Return float32 [B, K, lanes], standard normals for positions as in `gumbel_at`, in a separate stream."""
        return _normal(self._uniform_at(position, lanes, Purpose.DRAFT))

    def _uniform_at(self, position: Tensor, lanes: int, purpose: int) -> Tensor:
        row = mix(self.seeds[:, None] ^ mix((~position * 8 + purpose) * 65536 * GOLDEN))
        return _lanes(row, lanes)


@dataclass(slots=True)
class CountedKeys(Keys):
    """`Keys` whose `round` is an int64 scalar tensor: the same numbers without a round number on the host."""

    def uniform(self, purpose: Purpose, *shape: int, step: int = 0) -> Tensor:
        """Draw nothing ahead, since a replay would repeat it."""
        return uniforms(self.seeds, self.stream(purpose, step), prod(shape)).reshape(-1, *shape)
