"""Row-parallel decodings, ZipAR and PJD, and the rule that verifies several rows of an image at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, expand_tree, gather_nodes
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Weights, law_row
from mmspec.core.round.sampling import law_of, mass_at, ratio_of, residual_law
from mmspec.core.round.tree import chains
from mmspec.imagegen.any_order import AnyOrderDecoding, AnyOrderRule, AnyOrderTarget, accepted_from_root, is_root
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.rowwise.open_rows import OpenRows
from mmspec.imagegen.rowwise.row_schedule import row_schedule
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method


class RowParallelRule(AnyOrderRule):
    """Token-wise rejection along every chain, a chain per row of the image. Relaxed: a row is settled before the rows
    above it are complete. Where only a single row is open at a time, the output has the distribution of plain decoding.
    A chain goes on with probability min(1, p / q) at each value. Behind its last value follows a draw from [p - q]+, or
    from p where nothing was rejected. A greedy request goes on while the drafted value is the argmax."""

    name = "row parallel (relaxed)"
    proven_for = frozenset({("categorical", "without_replacement"), ("none", "none")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.law.scores is None:
            return Weights(torch.ones(draft.value.shape, device=draft.value.device), "mask")
        parent = draft.tree.parent
        if evidence.greedy:
            best = evidence.scores.argmax(-1)
            hit = draft.value == best.gather(1, expand_tree(parent, draft.batch))
            return Weights(hit.float(), "mask")
        p, q = law_of(evidence.scores), law_of(draft.law.scores)
        ratio = ratio_of(mass_at(p, parent, draft.value), mass_at(q, law_row(draft)[parent], draft.value))
        return Weights(ratio, "mask")

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        passed = super().select(weights, uniform, draft)
        known = is_root(draft.tree) if draft.valid is None else is_root(draft.tree) & draft.valid
        passed.keep = accepted_from_root(draft.tree, passed.keep) & (passed.keep | known)
        passed.depth = (passed.keep & ~is_root(draft.tree)).sum(-1)
        return passed

    def law(self, evidence: Evidence, draft: Draft, end: Tensor) -> Tensor:
        p = super().law(evidence, draft, end)
        if draft.law.scores is None:
            return p
        child = (end + 1).clamp(max=draft.tree.nodes - 1)
        rejected = (expand_tree(draft.tree.parent, draft.batch).gather(1, child) == end) & (child > end)
        rejected = rejected if draft.valid is None else rejected & draft.valid.gather(1, child)
        q = law_of(gather_nodes(draft.law.scores, law_row(draft)[end]))
        flat = residual_law(p.flatten(0, 1), q.flatten(0, 1), p.new_ones(end.numel()), rejected.flatten().to(p.dtype))
        return flat.view_as(p)


@method(
    "pjd",
    domain=("image", "video"),
    kind="decoding",
    title="PJD",
    exact=False,
    models=("codes",),
    about="Jacobi decoding in several rows at once",
    paper="Parallel Jacobi Decoding",
    order=21,
)
@dataclass(frozen=True, slots=True)
class PJD(AnyOrderDecoding):
    """Speculative Jacobi decoding in every open row; a row opens when the row above has `context` values. Relaxed.

    "Parallel Jacobi Decoding" (no public code). A value is settled before all values ahead of it in raster order are;
    context >= the columns is exact. A row drafts min(window, lead of the row above) values from the previous round's
    distributions, and its drafts see no drafts of other rows. Only the first open row settles a rejected value from the
    residual; elsewhere that draw is the next draft. Our choices where the paper is silent: a row with an incomplete
    predecessor starts behind a stand-in as in ZipAR, at most columns / context + 1 rows are open, and old keys and
    values stay stale.

    Args:
        context: The number of values in the row above when a row opens.
        window: The most values that a row drafts.

    Raises:
        ValueError: A setting is below 1.
    """

    context: Size = 8
    window: Size = 8

    __post_init__ = check_fields

    @property
    def name(self) -> str:
        return f"pjd_{self.context}_{self.window}"

    def rule(self, model: ImageModel) -> RowParallelRule:
        return RowParallelRule()

    def open(self, target: AnyOrderTarget) -> OpenRows:
        return OpenRows(target, self.context, self.window)


@method(
    "zipar",
    domain=("image", "video"),
    kind="decoding",
    title="ZipAR",
    exact=False,
    models=("codes",),
    about="several rows at once",
    paper="ZipAR: Parallel Autoregressive Image Generation through Spatial Locality",
    order=20,
)
@dataclass(frozen=True, slots=True)
class ZipAR(AnyOrderDecoding):
    """Every open row gains a value per round; a row opens when the row above has `window` values. Relaxed.

    "ZipAR: Parallel Autoregressive Image Generation through Spatial Locality". A value is drawn before all values ahead
    of it in raster order are known; window >= the columns is plain decoding. n x n values need about n + window (n - 1)
    passes. The public code feeds the last value of the row before as a stand-in for a missing last value, visible until
    it is overwritten; here only the stand-in itself sees it. Keys and values computed before the row above was complete
    stay stale, as in the public code.

    Args:
        window: The number of values in the row above when a row opens.
        adaptive: Whether a row opens, from `window` values on, as soon as a candidate for its first value is accepted.
            The distribution after a further value of the row above accepts it with probability min(1, p_k / p_(k-1));
            else a draw from [p_k - p_(k-1)]+ is the next candidate. The candidate is fed while it is verified, so an
            accepted row goes on in the same round.

    Raises:
        ValueError: The window is below 1.
    """

    window: Size = 8
    adaptive: bool = False

    __post_init__ = check_fields

    @property
    def name(self) -> str:
        return f"zipar{'_adaptive' if self.adaptive else ''}_{self.window}"

    def rule(self, model: ImageModel) -> RowParallelRule:
        return RowParallelRule()

    def open(self, target: AnyOrderTarget) -> _ScheduledRows | OpenRows:
        if self.adaptive:
            return OpenRows(target, context=self.window, window=0)
        return _ScheduledRows(target.geometry, self.window)


class _ScheduledRows:
    passes = 0

    def __init__(self, geometry: Geometry, window: int):
        self.geometry, self.window, self.round = geometry, window, 0

    def propose(self, target: AnyOrderTarget, keys: Keys) -> Draft:
        place, source, fed, wanted = _schedule_tensors(self.geometry, self.window, str(target.device))[self.round]
        self.round += 1
        shape = (target.batch, len(place))
        value = target.values.index_select(1, source)
        return Draft(
            value,
            chains((0,) * len(place), target.device),
            Law("none"),
            fed.expand(shape),
            place.expand(shape),
            wanted.expand(shape),
        )

    def observe(self, target: AnyOrderTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None


@lru_cache(maxsize=16)
def _schedule_tensors(geometry: Geometry, window: int, device: str) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return per round the places, the sources, which nodes are no stand-ins, and which ask for a value; [N] each."""
    return [
        tuple(
            torch.tensor(x, device=device)
            for x in zip(*((f.place, f.source, f.place == f.source, f.open) for f in feeds), strict=True)
        )
        for feeds in row_schedule(geometry, window)
    ]
