from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mmspec.core.drafting.request_shape import tree_sizes, verified_nodes
from mmspec.core.length.draft_estimates import DEEPEST, DrafterEstimates, RequestAcceptance
from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.round.draft import Draft, Preview
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DraftState

WHOLE = -1  # the size of drafts of a fixed shape
_BEHIND = 8  # rows within this many values of the slowest row may also be the last to finish


class DraftOption(NamedTuple):
    size: int  # the nodes of a tree, 0 for a chain, `WHOLE` for a fixed shape
    depth: int
    nodes: int  # of the pass, the root included
    tokens: float  # values that the round is expected to emit in a row that ends the batch
    cost: float  # of the round, in plain passes


class DraftSource:
    """A drafter in a request. Where a state has `preview`, its draft is compared with the values that follow even if
    another drafter drafted. A preview starts where the last preview ended, as if the drafter had drafted all along."""

    def __init__(self, state: DraftState, estimates: DrafterEstimates, batch: int):
        self.state, self.estimates = state, estimates
        self.deepest: int | None = getattr(state, "deepest", None)
        self.acceptance = RequestAcceptance(estimates, *(() if self.deepest is None else (self.deepest,)))
        self.previews = hasattr(state, "preview")
        self.may_miss = bool(getattr(state, "may_miss", False))
        self.sizes = tree_sizes(state.shape) if hasattr(state, "resize") else {}
        self.fresh = not self.may_miss  # a drafter that may miss rounds reads no prompt
        self._shown: list[Preview | None] = []
        self._trailing = [True] * batch
        self._open: list[tuple[Preview, int] | None] = [None] * batch

    def look(self, target: object) -> None:
        self._trailing = trailing_rows(target)
        if self.previews:
            self._shown = self.state.preview(target)

    def options(self, target: object, costs: PassCosts, room: int) -> Iterator[DraftOption]:
        if self.previews:
            yield from self._copied(target, costs, room)
            return
        if self.deepest is None:
            yield self._option(WHOLE, min(self.estimates.reach, room), self._nodes(8), costs)
            return
        most = min(self.deepest, room, DEEPEST)
        for size, shape in self.sizes.items():
            for depth in range(min(2, most) if size else 1, most + 1):
                yield self._option(size, depth, verified_nodes(shape, depth), costs)
        if not self.sizes:
            for depth in range(1, most + 1):
                yield self._option(0, depth, self._nodes(depth + 1, depth), costs)

    def _option(self, size: int, depth: int, nodes: int, costs: PassCosts) -> DraftOption:
        tokens = self.acceptance.tokens(size)[depth]
        cost = costs.expected(nodes) + self.estimates.draw_cost(size, depth)
        return DraftOption(size, depth, nodes, tokens, cost)

    def _nodes(self, guess: int, depth: int = WHOLE) -> int:
        return round(self.estimates.nodes.get(depth, guess))

    def _copied(self, target: object, costs: PassCosts, room: int) -> Iterator[DraftOption]:
        rows = [preview for preview, behind in zip(self._shown, trailing_rows(target), strict=True) if behind]
        drafted = [(len(row.values), self.acceptance.tokens(row.kind)) for row in rows if row is not None]
        longest = min(max((length for length, _ in drafted), default=0), room, DEEPEST)
        for depth in range(1, longest + 1):
            gained = sum(tokens[min(depth, length)] - 1 for length, tokens in drafted)
            cost = costs.expected(depth + 1) + self.estimates.draw_cost(0, depth)
            yield DraftOption(0, depth, depth + 1, 1 + gained / len(rows), cost)

    def propose(self, target: object, keys: Keys, option: DraftOption) -> Draft:
        if self.sizes:
            self.state.resize(self.sizes[option.size])
        return self.state.propose(target, keys, *(() if self.deepest is None else (option.depth,)))

    def finish_round(self, target: object, option: DraftOption | None, draft: Draft) -> None:
        """`option` is None where this drafter did not draft; the target has committed."""
        if self.previews:
            self._compare(target, option is not None)
        elif option is not None:
            estimates, depth, nodes = self.estimates, option.depth, draft.pass_tree.nodes
            if option.size == WHOLE:
                depth = estimates.reach = max(estimates.reach, draft.tree.max_depth)
            if not self.sizes:
                key = WHOLE if option.size == WHOLE else depth
                before = estimates.nodes.get(key, float(nodes))
                estimates.nodes[key] = before + 0.2 * (nodes - before)
            for path, behind in zip(target.paths, self._trailing, strict=True):
                if path and behind:
                    self.acceptance.add(option.size, len(path) - 1, depth)

    def _compare(self, target: object, drafted: bool) -> None:
        still_open: list[tuple[Preview, int] | None] = [None] * len(self._open)
        for row, (path, shown, alive) in enumerate(zip(target.paths, self._shown, live_rows(target), strict=True)):
            preview, matched = self._open[row] or (shown, 0)
            if drafted and self._open[row] is not None:  # a new draft ends the open preview
                self.acceptance.add(preview.kind, matched, matched)
                preview, matched = shown, 0
            if preview is None or not path or not alive:
                continue
            brought = target.tokens[row][-len(path) :]
            coming = preview.values[matched : matched + len(brought)]
            same = next(
                (n for n, pair in enumerate(zip(coming, brought, strict=False)) if pair[0] != pair[1]), len(coming)
            )
            matched += same
            if same < len(coming):
                self.acceptance.add(preview.kind, matched, len(preview.values))
            elif matched == len(preview.values):
                self.acceptance.add(preview.kind, matched, matched)
            else:
                still_open[row] = preview, matched
        self._open, self._shown = still_open, []


def live_rows(target: object) -> list[bool]:
    return getattr(target, "live", None) or [True] * target.batch


def trailing_rows(target: object) -> list[bool]:
    """Return whether each row goes on and has emitted hardly more than the slowest row, as long as which a batch takes."""
    live = live_rows(target)
    least = min((n for n, alive in zip(target.emitted, live, strict=True) if alive), default=0)
    return [alive and n <= least + _BEHIND for n, alive in zip(target.emitted, live, strict=True)]
