"""Seconds of a request: its prefill with pictures, plain passes, and rounds of draft and verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from mmspec.estimate.acceptance import AcceptanceCurve
from mmspec.estimate.device import Device
from mmspec.estimate.drafters import DrafterCost
from mmspec.estimate.model_cost import ModelCost
from mmspec.estimate.work import BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """The size of a request."""

    batch: int = 1  # requests at once
    context: int = 128  # text tokens of the prompt
    pictures: int = 0
    new_tokens: int = 256  # values to generate
    dtype: str = "bfloat16"  # of weights, cache and activations

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise ValueError(f"--dtype: expected one of {', '.join(BYTES)}, got {self.dtype!r}, choose one of these")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a request and of its parts."""

    length: int  # levels of a draft; 0 for plain decoding
    nodes: int  # of a draft; 0 for plain decoding
    tokens: float  # values a round and row
    prefill: float
    draft: float  # seconds of a round's draft
    verify: float  # seconds of a round's target pass
    seconds: float
    speedup: float  # plain decoding's seconds over these, prefill included
    decoding: float  # the speedup without the prefill
    memory: float  # bytes of weights and cache

    @property
    def round(self) -> float:
        """Seconds of a round; the time of the host is part of `verify`."""
        return self.draft + self.verify

    @property
    def target_efficiency(self) -> float:
        """Seconds of a plain pass over those of the pass that verifies a draft, as in MoESD; 1 where nodes cost
        nothing. It falls where a pass is bound by computing, and where more tokens choose more experts of a mixture."""
        return self.decoding * self.round / (self.tokens * self.verify)

    def record(self) -> dict[str, float]:
        return {**asdict(self), "target_efficiency": self.target_efficiency}


@dataclass(frozen=True, slots=True)
class MeasuredPasses:
    """Timed passes of a target."""

    seconds: Mapping[int, float]  # of a pass by its number of values, ascending from 1

    def at(self, values: int) -> float:
        """Return the seconds of a pass over `values` values, interpolated linearly."""
        widths = sorted(self.seconds)
        above = next((width for width in widths if width >= values), widths[-1])
        below = max((width for width in widths if width <= values), default=widths[0])
        low, high = self.seconds[below], self.seconds[above]
        return low if above == below else low + (high - low) * (values - below) / (above - below)


@dataclass(frozen=True)
class RoundCost:
    """The costs of a target and a drafter on a device."""

    device: Device
    target: ModelCost
    drafter: DrafterCost
    curve: AcceptanceCurve  # the acceptance of its drafts
    small: ModelCost | None = None  # the model that drafts, for a drafter that is a model
    passes: MeasuredPasses | None = None  # timed passes that replace the estimated passes
    width: int = 8  # most nodes of a level that a tree expands

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", cache(self._plain))

    def _plain(self, request: Request) -> tuple[float, float]:
        """Return the seconds of a prefill and of a pass of plain decoding."""
        tokens = request.context + request.pictures * self.target.picture_rows
        weights = self._ready(request)
        prompt = self.target.prefill_work(
            request.context, request.dtype, batch=request.batch, pictures=request.pictures
        )
        prefill = self.device.seconds(prompt, request.dtype, weights) + self.device.request
        return prefill, self._pass(request, 1, tokens + request.new_tokens / 2)

    def _pass(self, request: Request, values: int, context: float) -> float:
        """Return the seconds of a pass of the target, with the time of the host."""
        if self.passes is not None and request.batch == 1:
            return self.passes.at(values) + self.device.round
        work = self.target.pass_work(values, context, request.dtype, batch=request.batch)
        return self.device.seconds(work, request.dtype, self._ready(request)) + self.device.round

    def _ready(self, request: Request) -> float:
        return self.target.weight_bytes(request.dtype)

    def estimate(self, request: Request, length: int, nodes: int | None = None) -> Estimate:
        """Return the seconds with drafts of `length` levels, 0 for plain decoding; `nodes` default to those of a chain."""
        nodes = length if nodes is None else nodes
        if nodes > length and not self.drafter.tree:
            raise ValueError(
                f"--tree: expected it left out for {self.drafter.name}, which drafts chains, got {nodes}, drop it"
            )
        dtype, batch, weights = request.dtype, request.batch, self._ready(request)
        prompt = request.context + request.pictures * self.target.picture_rows
        seen = prompt + request.new_tokens / 2
        prefill, plain = self.plain(request)
        memory = self.target.weight_bytes(dtype) + batch * self.target.kv_bytes(prompt + request.new_tokens, dtype)
        plain_seconds = prefill + (request.new_tokens - 1) * plain
        if length == 0:
            return Estimate(0, 0, 1.0, prefill, 0.0, plain, plain_seconds, 1.0, 1.0, memory)
        width = min(max(nodes / length, 1.0), self.width)
        price = self.device.seconds
        drafted = self.drafter.work(self.target, length, width, seen, dtype, batch, self.small)
        draft = price(drafted, dtype, weights, drafting=True)
        verify = self._pass(request, 1 + nodes, seen)
        reading = self.drafter.prefill_work(self.target, prompt, dtype, batch, self.small)
        prefill += price(reading, dtype, weights)
        tokens = self.curve.tokens(length, nodes)
        rounds = (request.new_tokens - 1) / tokens
        seconds = prefill + rounds * (draft + verify)
        if self.small is not None:
            memory += self.small.weight_bytes(dtype)
        return Estimate(
            length,
            nodes,
            tokens,
            prefill,
            draft,
            verify,
            seconds,
            plain_seconds / seconds,
            plain * tokens / (draft + verify),
            memory,
        )

    def best(self, request: Request, lengths: Sequence[int], trees: tuple[int, ...] = ()) -> Estimate:
        estimates = [self.estimate(request, length) for length in lengths]
        if self.drafter.tree:
            estimates += [self.estimate(request, n, nodes) for nodes in trees for n in lengths if 0 < n < nodes]
        return max(estimates, key=lambda estimate: estimate.speedup)

    def with_batch(self, request: Request, batch: int) -> Request:
        return replace(request, batch=batch)
