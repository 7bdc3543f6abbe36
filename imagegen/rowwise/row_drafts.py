"""Drafts from the next row: its first values are probed ahead of the window, and raster order decides."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw
from mmspec.core.round.tree import Tree, static_tree
from mmspec.imagegen.jacobi.initialisation import ONE_HOT, Init, JacobiWindow, PositionRing
from mmspec.imagegen.jacobi.jacobi_drafts import SJD, Coupling, JacobiState
from mmspec.imagegen.jacobi.tree import Caterpillar
from mmspec.imagegen.target import ImageTarget
from mmspec.io.validation import Range, check_fields
from mmspec.methods import method

_PROBES = 2  # the step of these draws in a round; the window and its siblings use other steps


@dataclass(frozen=True, slots=True)
class RowDrafts:
    """Speculative Jacobi decoding that also probes the first `lead` values of the row behind the window's row. Exact.

    It uses the geometry of ZipAR and PJD for drafts only. Probed places are fed but never verified. Their distributions
    are recorded as q until the window reaches them, where `SJD` would otherwise use the distribution of a neighbour.
    Every draft is drawn from its recorded distribution before anything ahead of it is verified, so the rules that are
    exact for `window` stay exact. The first value of a row follows the last value of the row before. While that is not
    drafted, the newest value above it replaces it, or the value in the previous frame.

    Args:
        window: The Jacobi drafter, with an init that draws from the distribution that it records.
        lead: The number of probed values.
        sight: The values that probes see besides the settled values and their own row: "window" adds its drafts, "row"
            adds no other row.

    Raises:
        ValueError: A setting is out of range.
    """

    window: SJD = field(default_factory=SJD)
    lead: Annotated[int, Range(1, hint="use the window alone for none")] = 8
    sight: Literal["window", "row"] = "window"

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.window, SJD):
            raise ValueError(f"window: expected an SJD, got {type(self.window).__name__}; pass SJD(16)")
        if self.window.init in ONE_HOT:
            raise ValueError(
                f"window: expected an init that draws from its own q, got {self.window.init!r}; use "
                "'left', 'up', 'frame', 'mix' or 'uniform'"
            )

    @property
    def name(self) -> str:
        return f"{self.window.name} + row {self.lead}{'' if self.sight == 'window' else ' row-causal'}"

    def open(self, target: ImageTarget) -> RowDraftsState:
        return RowDraftsState(self, target)


class RowDraftsState(JacobiState):
    """`ahead_laws` has the probed places' distributions; `probed` bool [B, total + 1] ends behind the image."""

    def __init__(self, settings: RowDrafts, target: ImageTarget):
        super().__init__(settings.window, target)
        self.lead, self.sight = settings.lead, settings.sight
        self.ahead_laws: PositionRing | None = None
        self.probed = torch.zeros(target.batch, target.total + 1, dtype=torch.bool, device=target.device)
        self.judged: Draft | None = None  # the last draft without its probes
        self.place: Tensor | None = None  # int64 [B, lead + 1], the place before the probes, then the probed places

    def propose(self, target: ImageTarget, keys: Keys, longest: int | None = None) -> Draft:
        draft = self.judged = super().propose(target, keys, longest)
        if not self.length:
            return draft
        spine = target.last[:, None] + torch.arange(1, self.length + 1, device=target.device)
        end = spine[:, -1:].clamp(max=target.total - 1)
        inside = self.sources.row_start[end] + self.sources.stride[end] - 1
        self.place = inside + torch.arange(self.lead + 1, device=target.device)
        value = self._guess(target, draft.value.index_select(1, self.shape.spine)[:, 1:], spine, end, keys)
        tree = _with_probes(self.shape, self.lead, self.sight)
        law = Law("deterministic")
        if draft.law.row is not None:
            law = Law(
                draft.law.drawn,
                pad(draft.law.row, (0, self.lead + 1), value=-1),
                draft.law.scores,
                reused=draft.law.reused,
            )
        index = torch.cat((target.last[:, None] + draft.tree.depth, self.place), 1)
        valid = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid
        return Draft(torch.cat((draft.value, value), 1), tree, law, pad(valid, (0, self.lead + 1), value=False), index)

    def _guess(self, target: ImageTarget, drafted: Tensor, spine: Tensor, end: Tensor, keys: Keys) -> Tensor:
        """Return the values int64 [B, lead + 1] to feed. They are drawn from a probed distribution; else they copy the
        newest value above, or of the previous frame where a frame begins."""
        place = self.place.clamp(max=target.total - 1)
        canvas = pad(target.values, (0, self.settings.window)).scatter_(1, spine, drafted)
        window = JacobiWindow(self.place, place, end, place > end)
        above = self.sources.near("up", window)
        value = canvas.gather(1, torch.where(above == place, self.sources.near("frame", window), above))
        if self.sources.forced is not None:
            forced = self.sources.forced[place]
            value = torch.where(forced >= 0, forced, value)
        scores = self.ahead_laws.read(place)
        drawn = scores.argmax(-1)
        if not target.greedy:
            drawn = draw(scores, keys.uniform(Purpose.DRAFT, place.shape[1], step=_PROBES))
        has = self.probed.gather(1, place) & (place > end)
        return torch.where(has, drawn, value)

    def observe(self, target: ImageTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if draft.tree.nodes == 1:
            super().observe(target, draft, evidence, verdict)
        else:
            own = replace(evidence, scores=evidence.scores[:, : self.judged.tree.nodes])
            super().observe(target, self.judged, own, verdict)
            self._probe(target, evidence.scores)
        self.judged = self.place = None

    def _note(self, target: ImageTarget, position: Tensor, laws: Tensor) -> None:
        super()._note(target, position, laws)
        if self.ahead_laws is None:
            reach = 2 * (int(self.sources.stride.max()) + self.lead) + self.settings.window
            self.ahead_laws = PositionRing(reach, target.batch, laws.new_zeros(laws.shape[-1]))

    def _probe(self, target: ImageTarget, scores: Tensor) -> None:
        if self.place is not None:
            place = self.place + 1
            self.ahead_laws.write(place, scores[:, -self.lead - 1 :])
            self.probed.scatter_(1, place.clamp(max=target.total), True)

    def _scores(self, window: JacobiWindow) -> Tensor:
        scores = super()._scores(window)
        has = window.unscored & (window.position == window.inside) & self.probed.gather(1, window.inside)
        return torch.where(has[..., None], self.ahead_laws.read(window.inside), scores)


@lru_cache(maxsize=64)
def _with_probes(shape: Caterpillar, lead: int, sight: str) -> Tree:
    """Return the shape's tree with a chain of probes below the end of its spine, or below the root."""
    parents = shape.tree.parent[0].tolist()
    first = int(shape.spine[-1]) if sight == "window" else 0
    return static_tree([*parents, first, *range(len(parents), len(parents) + lead)], shape.tree.parent.device)


@method(
    "rows",
    domain=("image", "video"),
    models=("codes",),
    kind="decoding",
    title="row drafts",
    exact=True,
    about="coupled Jacobi decoding that looks into the next row",
    order=4,
)
def coupled_rows(
    window: int = 32,
    coupling: Coupling = "gumbel",
    init: Init = "left",
    lead: int = 8,
    sight: Literal["window", "row"] = "window",
) -> RowDrafts:
    """`RowDrafts` with coupled Jacobi decoding.

    Args:
        window: The number of values per pass, drafts and root.
        coupling: How drafts are coupled between rounds.
        init: The first draft of a position that no pass has scored yet; see `SJD`.
        lead: The number of values probed in the row behind the window's row.
        sight: The values that probes see besides the settled values and their own row.
    """
    return RowDrafts(SJD(window, init, coupling), lead, sight)
