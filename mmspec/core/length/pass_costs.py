"""The measured cost of a target pass by its width, and the width that a pass is padded to. On a CPU skinny matrix
products make a pass over 2 or 3 nodes dearer than a pass over 4."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.length.round_estimates import RoundCosts

_UNKNOWN_STEP = 0.08  # the assumed cost of a node beyond the measured widths: low, so that such widths are tried
_LOW = 0.8  # the share of the interpolated cost, or slope, that is assumed between measured widths
_FAR = 0.2  # the limit of a comparison's deviation (as a log): another process may have delayed the pass
_EARLY = 15  # comparisons whose median starts an estimate: of fewer, half may have met another process
_ONCE = 2.0  # the limit of a width's only comparison, as a multiple of the guess for a width that was never measured
_SURE = 3  # samples of a width before passes are padded to it, or away from it
_REACH = 4  # the most nodes that padding adds
_SAVING = 0.95  # a wider pass has to cost less than this share of the narrower one
_TRY, _RECHECK = 4, 32  # passes between two trials of a wider pass, and between two rechecks of the narrow pass


class PassCosts:
    """Seconds of a target pass and its verification by width, the nodes of a row, measured on real rounds. Costs are
    relative to a pass over single nodes at the same pace, see `RoundCosts`; widths without measurements are
    interpolated. Threads may share it. `fixed_widths` maps nodes to fixed widths, empty before `fix_widths`."""

    def __init__(self) -> None:
        self.measured = RoundCosts(far=_FAR, early=_EARLY)
        self.fixed_widths: dict[int, int] = {}
        self._costs: dict[int, float] = {}
        self._widths: dict[int, int] = {}
        self._turns: dict[int, int] = {}
        self._lock = Lock()

    def add(self, width: int, seconds: float) -> None:
        """`width` includes padding, 0 for a pass of some layers, which is not comparable. `seconds` end with the
        commit."""
        if not width:
            return
        with self._lock:
            if self.measured.add(width, seconds) or self.measured.count(width) <= _SURE:
                self._costs, self._widths = {}, {}

    @property
    def ready(self) -> bool:
        return self.measured.count(1) >= 2

    def compared(self, width: int) -> int:
        """Return the number of passes that followed a pass of another width, the only comparable samples."""
        known = self.measured.measured.get(width)
        return 0 if known is None else known.compared

    def plain_seconds(self) -> float:
        return self.measured.seconds(1)

    def cost(self, width: int) -> float:
        """Return passes over single nodes, at least 1; only if `ready`. An estimate from few samples is biased low, so
        that a single slow sample does not rule a width out."""
        known = self._costs.get(width)
        if known is None:
            with self._lock:
                known = self._costs[width] = self._estimate(width)
        return known

    def curve(self) -> dict[int, float]:
        """Return the unbiased costs in passes over single nodes."""
        with self._lock:
            if not self.ready:
                return {}
            return {width: self._ratio(width) for width in sorted(self.measured.measured)}

    def fix_widths(self) -> None:
        """Fix the padded widths for requests that do not adapt, from the present measurements."""
        with self._lock:
            widths = range(2, max(self.measured.measured, default=1)) if self.ready else ()
            self.fixed_widths = {nodes: width for nodes in widths if (width := self._cheapest(nodes)) != nodes}

    def padded(self, nodes: int, adapts: bool = True) -> int:
        """Return the width that a pass over `nodes` nodes (with the root) is padded to. With `adapts` it follows the
        latest costs, and is at times an unmeasured width or `nodes` itself, so that both stay measured; otherwise
        `fix_widths` fixed it."""
        if not adapts:
            return self.fixed_widths.get(nodes, nodes)
        if nodes == 1 or not self.ready:
            return nodes
        width = self._widths.get(nodes)
        if width is None:
            with self._lock:
                width = self._widths[nodes] = self._cheapest(nodes)
        if width == nodes and (nodes % _REACH == 0 or self.measured.count(_rounded(nodes)) >= _SURE):
            return nodes
        turn = self._turns[nodes] = self._turns.get(nodes, 0) + 1
        if width != nodes:
            return nodes if turn % _RECHECK == 0 else width
        return _rounded(nodes) if turn % _TRY == 0 else nodes

    def expected(self, nodes: int) -> float:
        return min(self.cost(nodes), self.cost(self._widths.get(nodes, nodes)))

    def _cheapest(self, nodes: int) -> int:
        count = self.measured.count
        best = nodes
        if count(nodes) < _SURE:
            return best
        for width in range(nodes + 1, nodes + _REACH + 1):
            if count(width) >= _SURE and self._ratio(width) < _SAVING * self._ratio(best):
                best = width
        return best

    def _ratio(self, width: int) -> float:
        seconds = self.measured.seconds
        return max(seconds(width) / seconds(1), 1.0)

    def _estimate(self, width: int) -> float:
        if width == 1:
            return 1.0
        guess, count = self._low_guess(width), min(self.compared(width), 16)
        return (count * self._believed(width) + guess) / (count + 1) if count else guess

    def _believed(self, width: int) -> float:
        """A single comparison is bounded, since it may have been delayed at will."""
        ratio = self._ratio(width)
        return ratio if self.compared(width) > 1 else min(ratio, _ONCE * (1 + _UNKNOWN_STEP * (width - 1)))

    def _low_guess(self, width: int) -> float:
        """Guess below the interpolated cost, since an expensive width may have a cheap neighbour."""
        others = [n for n in self.measured.measured if n != width]
        below, above = max(n for n in others if n < width), min((n for n in others if n > width), default=0)
        low = self._believed(below)
        if above:
            between = low + (self._believed(above) - low) * (width - below) / (above - below)
            return max(_LOW * between, 1.0)
        if below < _REACH:  # skinny passes say nothing about wider passes
            return 1 + _UNKNOWN_STEP * (width - 1)
        return low + _LOW * (low - 1) / (below - 1) * (width - below)


def _rounded(nodes: int) -> int:
    return -(-nodes // _REACH) * _REACH


def pad_nodes(value: Tensor, depth: Tensor, ancestor: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Append nodes to a draft that no node of it sees: they see themselves and committed slots, repeat the root and
    have depth 0. Values and depths int64 [B, N] become [B, width], and `ancestor` bool [R, N, N] becomes [R, width,
    width]."""
    more = width - value.shape[1]
    value = torch.cat([value, value[:, :1].expand(-1, more)], 1)
    ancestor = F.pad(ancestor, (0, more, 0, more))
    ancestor.diagonal(dim1=1, dim2=2)[:, -more:] = True
    return value, F.pad(depth, (0, more)), ancestor


_known: WeakKeyDictionary[nn.Module, dict[Hashable, PassCosts]] = WeakKeyDictionary()
_known_lock = Lock()


def pass_costs_of(model: nn.Module, kind: Hashable) -> PassCosts:
    """Return costs that are released with a model without wrappers; `kind`: batch, device, precision and attention."""
    with _known_lock:
        return _known.setdefault(model, {}).setdefault((kind, torch.get_num_threads()), PassCosts())
