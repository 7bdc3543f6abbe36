"""Seconds of a request: its prefill with pictures, plain passes, and rounds of a draft and a verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mmspec.estimate.acceptance import AcceptanceCurve
from mmspec.estimate.device import Device
from mmspec.estimate.drafters import DrafterCost
from mmspec.estimate.model_cost import ModelCost
from mmspec.estimate.work import BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of a request.

    Attributes:
        batch: Requests at once.
        context: Tokens of the prompt's text.
        pictures: Of a prompt.
        new_tokens: Values that are generated.
        dtype: Of weights, cache and activations.
    """

    batch: int = 1
    context: int = 128
    pictures: int = 0
    new_tokens: int = 256
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise ValueError(f"--dtype: expected one of {', '.join(BYTES)}, got {self.dtype!r}, choose one of these")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a request and of its parts.

    Attributes:
        length, nodes: Levels and nodes of a draft; 0 of plain decoding.
        tokens: Values a round and row.
        prefill, draft, verify: Seconds of the prompt, and of a round's draft and of its pass of the target.
        seconds: Of the request.
        speedup: Plain decoding's seconds over these, prefill included.
        decoding: The same without the prefill.
        memory: Bytes of weights and cache.
    """

    length: int
    nodes: int
    tokens: float
    prefill: float
    draft: float
    verify: float
    seconds: float
    speedup: float
    decoding: float
    memory: float

    @property
    def round(self) -> float:
        """Seconds of a round. The work of the host is included in `verify`."""
        return self.draft + self.verify


@dataclass(frozen=True, slots=True)
class MeasuredPasses:
    """Timed passes of a target.

    Attributes:
        seconds: Of a pass by its values, ascending, 1 among them.
    """

    seconds: Mapping[int, float]

    def at(self, values: int) -> float:
        """Seconds of a pass over so many values, on the line between the nearest that were timed."""
        widths = sorted(self.seconds)
        above = next((one for one in widths if one >= values), widths[-1])
        below = max((one for one in widths if one <= values), default=widths[0])
        low, high = self.seconds[below], self.seconds[above]
        return low if above == below else low + (high - low) * (values - below) / (above - below)


@dataclass(frozen=True)
class RoundCost:
    """The costs of a target and a drafter on a device.

    Attributes:
        device: The device.
        target: The model that verifies.
        drafter: The drafter.
        curve: The acceptance of its drafts.
        small: The smaller model of a drafter that is a model.
        passes: Timed passes, which replace the estimated passes; None for none.
        width: Nodes of a level that a tree goes on from, at most.
    """

    device: Device
    target: ModelCost
    drafter: DrafterCost
    curve: AcceptanceCurve
    small: ModelCost | None = None
    passes: MeasuredPasses | None = None
    width: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", cache(self._plain))

    def _plain(self, request: Request) -> tuple[float, float]:
        """Seconds of a prefill and of a pass of plain decoding."""
        tokens = request.context + request.pictures * self.target.picture_rows
        weights = self._ready(request)
        prompt = self.target.prefill_work(
            request.context, request.dtype, batch=request.batch, pictures=request.pictures
        )
        prefill = self.device.seconds(prompt, request.dtype, weights) + self.device.request
        return prefill, self._pass(request, 1, tokens + request.new_tokens / 2)

    def _pass(self, request: Request, values: int, context: float) -> float:
        """Return the seconds of a pass of the target, the work of the host included."""
        if self.passes is not None and request.batch == 1:
            return self.passes.at(values) + self.device.round
        work = self.target.pass_work(values, context, request.dtype, batch=request.batch)
        return self.device.seconds(work, request.dtype, self._ready(request)) + self.device.round

    def _ready(self, request: Request) -> float:
        return self.target.weight_bytes(request.dtype)

    def estimate(self, request: Request, length: int, nodes: int | None = None) -> Estimate:
        """The seconds of a request.

        Args:
            request: The settings of the request.
            length: Levels of a draft; 0 decodes plainly.
            nodes: Of a tree; those of a chain, if left out.

        Raises:
            ValueError: The drafter drafts no trees.
        """
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
        draft = price(self.drafter.work(self.target, length, width, seen, dtype, batch, self.small), dtype, weights)
        verify = self._pass(request, 1 + nodes, seen)
        reading = self.drafter.prefill_work(self.target, prompt, dtype, batch, self.small)
        prefill += price(reading, dtype, weights)
        tokens = self.curve.tokens(length, nodes)
        rounds = (request.new_tokens - 1) / tokens
        seconds = prefill + rounds * (draft + verify)
        if self.small is not None:
            memory += self.small.weight_bytes(dtype)
        return Estimate(length, nodes, tokens, prefill, draft, verify, seconds, plain_seconds / seconds,
                        plain * tokens / (draft + verify), memory)  # fmt: skip

    def best(self, request: Request, lengths: Sequence[int], trees: tuple[int, ...] = ()) -> Estimate:
        """The fastest estimate over draft lengths and tree sizes."""
        estimates = [self.estimate(request, length) for length in lengths]
        if self.drafter.tree:
            estimates += [self.estimate(request, n, nodes) for nodes in trees for n in lengths if 0 < n < nodes]
        return max(estimates, key=lambda one: one.speedup)

    def with_batch(self, request: Request, batch: int) -> Request:
        """The same request in another batch."""
        return replace(request, batch=batch)
