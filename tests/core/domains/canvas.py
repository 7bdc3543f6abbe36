"""A canvas of independent cells drafted at once: each stands or falls alone, and the fallen ones are drawn again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import Rule, Weights
from mmspec.core.round.sampling import draw
from mmspec.core.round.tree import static_tree
from mmspec.kernels.law import law_of
from mmspec.kernels.sampling import sample_categorical


class CellByCell(Rule):
    """Keeps a cell with probability min(1, p / q), else draws it from [p - q]+. Exact: cells are independent."""

    name = "cell_by_cell"
    exact = True
    proven_for = frozenset({("categorical", "with_replacement")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        p, q = law_of(evidence.scores), law_of(draft.law.scores) if draft.law.scores is not None else None
        if q is None:
            return Weights(torch.zeros(p.shape[:2]), "mask", p, torch.zeros_like(p))
        x = draft.value[..., None]
        return Weights((p.gather(-1, x) / q.gather(-1, x))[..., 0], "mask", p, q)

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        law = (weights.p - weights.q).clamp_min(0)
        verdict.correction = sample_categorical(law, keys.uniform(Purpose.RESIDUAL, draft.tree.nodes))
        return verdict


@dataclass
class Canvas:
    """The target. scores: float32 [cells + 1, V], the law of each cell; entry 0 stands for the root."""

    scores: Tensor
    batch: int
    done: bool = False
    verdicts: ClassVar[tuple[str, ...]] = ("mask",)

    def __post_init__(self) -> None:
        self.pending, self.emitted = torch.zeros(self.batch, dtype=torch.long), [0] * self.batch

    def prefill(self) -> tuple[Draft, Evidence]:
        draft = root_only(self.pending)
        return draft, Evidence(self.scores[None, :1].expand(self.batch, -1, -1))

    def score(self, draft: Draft) -> Evidence:
        return Evidence(self.scores.expand(self.batch, -1, -1))

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        assert verdict.kind == "mask" and verdict.correction.shape == draft.value.shape
        if draft.tree.nodes > 1:
            self.cells = torch.where(verdict.keep, draft.value, verdict.correction)[:, 1:]
            self.done, self.emitted = True, [self.cells.shape[1]] * self.batch
        return verdict.keep[:, 1:].sum(-1).tolist()


@dataclass(frozen=True)
class Painter:
    """Draws every cell from its own scores [cells + 1, V]; cells hang side by side under the root."""

    scores: Tensor
    name: str = "painter"
    passes: int = 0

    def open(self, target: Canvas) -> Painter:
        return self

    def propose(self, target: Canvas, keys: Keys) -> Draft:
        q = self.scores.expand(target.batch, -1, -1)
        value = draw(q, keys.uniform(Purpose.DRAFT, q.shape[1]))
        nodes = q.shape[1]
        return Draft(value, static_tree((0,) * nodes), Law("with_replacement", torch.arange(nodes), q))

    def observe(self, target: Canvas, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None
