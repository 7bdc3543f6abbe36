"""Whether a row's answer depends on anything but the row: on the rows beside it, or on earlier calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.certify.cases import CertifyCase, Shape, case_of
from mmspec.certify.step import AcceptStep, StepAnswer, StepQuestion

LOW, HIGH = 1e-12, 1 - 2.0**-24  # uniforms that pass, and fail, any undecided test, in float32 too
TRIED = 24


@dataclass(frozen=True, slots=True)
class NeighbourRound:
    """A round with a certain outcome for an exact step: all drafts are accepted, or the first is rejected."""

    name: str  # "accepted" or "rejected"
    question: StepQuestion  # a single row
    uniforms: Tensor  # float64 [1, N + 1]


def neighbour_rounds(shape: Shape, size: int) -> tuple[NeighbourRound, NeighbourRound]:
    nodes = len(shape.parents)
    agreed, apart = case_of("equal", shape, size, 0), case_of("disjoint", shape, size, 0)
    likely = int(agreed.drafts.chance.argmax())
    return tuple(
        NeighbourRound(
            name, case.question.rows(torch.tensor([row])), torch.full((1, nodes + 1), value, dtype=torch.float64)
        )
        # the last draft has the highest values, which have target probability 0
        for name, case, row, value in (("accepted", agreed, likely, LOW), ("rejected", apart, -1, HIGH))
    )


@dataclass(frozen=True, slots=True)
class Independence:
    """The dependences of a step's answers."""

    moved_by: tuple[tuple[NeighbourRound, bool], ...] = ()  # by neighbours, and whether they come first
    memoryless: bool = True  # no answer depends on earlier calls
    grudge: bool = False  # only calls that rejected drafts are remembered
    repeats: bool = True  # the same input gets the same answer


def independence_of(step: AcceptStep, case: CertifyCase) -> Independence:
    """Call a step with drafts of a case together, alone, beside others, and after other calls, all with uniforms."""
    accepting, rejecting = neighbour_rounds(case.shape, case.size)
    rows = torch.linspace(0, len(case.drafts.value) - 1, TRIED).round().long()
    question = case.question.rows(rows)
    dice = torch.Generator().manual_seed(1)
    uniforms = torch.rand(TRIED, len(case.shape.parents) + 1, generator=dice, dtype=torch.float64)

    def after(company: NeighbourRound | None) -> StepAnswer:
        fresh = step.fresh()
        if company is not None:
            fresh(company.question, company.uniforms)
        return fresh(question, uniforms)

    if not _same(after(accepting), after(accepting)):
        return Independence(repeats=False)
    calm, hurt = after(accepting), after(rejecting)
    again = after(accepting)
    memoryless = _same(calm, hurt) and _same(calm, again)
    # a step without a fresh start is judged after a call that leaves no rejected drafts
    grudge = not _same(calm, hurt) and _same(calm, again)
    moved = (
        _neighbours_that_matter(step.fresh(), question, uniforms, calm, (accepting, rejecting)) if memoryless else ()
    )
    return Independence(moved, memoryless, grudge)


def _neighbours_that_matter(
    step: AcceptStep, question: StepQuestion, uniforms: Tensor, together: StepAnswer, others: tuple[NeighbourRound, ...]
) -> tuple[tuple[NeighbourRound, bool], ...]:
    backwards = torch.arange(len(uniforms)).flip(0)
    moved: dict[str, tuple[NeighbourRound, bool]] = {}
    if not _same(step(question.rows(backwards), uniforms[backwards]), together, backwards):
        moved["all"] = (others[-1], True)
    for row in range(len(uniforms)):
        mine = torch.tensor([row])
        alone = step(question.rows(mine), uniforms[mine])
        if not _same(alone, together, mine):
            moved.setdefault("all", (others[-1], True))
        for other in others:
            for first in (True, False):
                if not _same(ask_beside(step, other, question.rows(mine), uniforms[mine], first), alone):
                    moved.setdefault(other.name, (other, first))
    if len(moved) > 1:
        moved.pop("all", None)  # a specific neighbour is the better evidence
    return tuple(moved.values())


def ask_beside(
    step: AcceptStep, other: NeighbourRound, question: StepQuestion, uniforms: Tensor, first: bool
) -> StepAnswer:
    """Return the answer to a single row in a batch of two, after the neighbour if `first`."""
    a, b = (other.question, question) if first else (question, other.question)
    u = torch.cat((other.uniforms, uniforms) if first else (uniforms, other.uniforms))
    answer, row = step(a.beside(b), u), torch.tensor([int(first)])
    return StepAnswer(answer.node[row], answer.value[row], answer.kept[row])


def _same(answer: StepAnswer, other: StepAnswer, rows: Tensor | None = None) -> bool:
    pick = slice(None) if rows is None else rows
    return all(torch.equal(getattr(answer, name), getattr(other, name)[pick]) for name in ("node", "value", "kept"))
