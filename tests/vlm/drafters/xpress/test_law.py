"""The joint law of chains that are refined as a whole, by enumeration and in requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspec.certify import enumeration
from mmspec.certify.enumeration import EnumeratedDrafts, complete_law, random_tables, target_law, total_variation
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules.rejection import BlockVerification, TokenWise, Traversal
from mmspec.core.round.tree import chain
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.xpress import refine
from tests.vlm.drafters.dflash.test_law import drawn
from tests.vlm.drafters.mutants import evenly_on_record
from tests.vlm.drafters.test_vision_law import LAWS, V, exact_law, narrow, p_value
from tests.vlm.drafters.trained import make

SIZE, LEVELS = 3, 3


class EveryChain:
    """All chains of three levels of a vocabulary of three, as `refine` draws them from context tables: one for every cell of
    the cube of uniform numbers in which no draw changes.

    Attributes:
        column: int64 [R, D].
        laws: float64 [R, D, V], what it was drawn from.
        chance: float64 [R].
    """

    def __init__(self, q: list[Tensor], first: list[Tensor], passes: int):
        numbers, chances = [], []
        for table, start in zip(q, first, strict=True):
            edges = torch.cat(
                [torch.zeros(1), *(t.cumsum(-1)[..., :-1].flatten() for t in (table, start)), torch.ones(1)]
            )
            edges = edges.sort().values
            wide = edges.diff() > 0
            numbers.append(((edges[1:] + edges[:-1]) / 2)[wide])
            chances.append(edges.diff()[wide])
        self.uniform = torch.cartesian_prod(*numbers)
        self.chance = torch.cartesian_prod(*chances).prod(-1)
        self.q, self.passes = q, passes
        start = torch.stack([t[0] for t in first]).log().expand(len(self.uniform), -1, -1)
        self.start = enumeration_draw(start, self.uniform)
        self.column, given = refine(self.scores, self.start, passes, self.uniform)
        self.laws = given.softmax(-1)

    def scores(self, column: Tensor) -> Tensor:
        code, found = torch.zeros(len(column), dtype=torch.long), []
        for level, table in enumerate(self.q):
            found.append(table[code].log())
            code = code * SIZE + column[:, level]
        return torch.stack(found, 1)

    def drafts(self) -> EnumeratedDrafts:
        value = torch.cat([torch.zeros_like(self.column[:, :1]), self.column], 1)
        code = torch.zeros_like(value)
        for level in range(LEVELS):
            code[:, level + 1] = code[:, level] * SIZE + self.column[:, level]
        return EnumeratedDrafts(value, code, torch.ones_like(value, dtype=torch.bool), self.chance)


def enumeration_draw(scores: Tensor, uniform: Tensor) -> Tensor:
    """The column at which the cumulated law passes a number."""
    return (scores.softmax(-1).cumsum(-1) <= uniform[..., None]).sum(-1)


def tables(seed: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The target's, the refined, and those of the first guess, which look at nothing."""
    marginal = [random_tables(SIZE, 1, seed + 7 * level, peak=1.5)[0] for level in range(LEVELS)]
    return random_tables(SIZE, LEVELS + 1, seed), random_tables(SIZE, LEVELS, seed + 50, peak=2.0), marginal


def emitted_token_by_token(p: list[Tensor], chains: EveryChain, laws: Tensor) -> float:
    """The total variation of what accepting with min(1, p / q) and correcting by the rest emits, written out; q is `laws`."""
    ends = [torch.zeros(1, SIZE ** (d + 1), dtype=torch.float64) for d in range(LEVELS + 1)]
    reach, code = chains.chance.clone(), torch.zeros(len(chains.column), dtype=torch.long)
    for level in range(LEVELS):
        want, law, token = p[level][code], laws[:, level], chains.column[:, level : level + 1]
        stands = (want.gather(1, token) / law.gather(1, token)).clamp(max=1)[:, 0]
        rest = (want - law).clamp(min=0)
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest / rest.sum(-1, keepdim=True), 0.0)
        place = code[:, None] * SIZE + torch.arange(SIZE)
        ends[level][0].index_put_((place,), (reach * (1 - stands))[:, None] * rest, accumulate=True)
        reach, code = reach * stands, code * SIZE + token[:, 0]
    place = code[:, None] * SIZE + torch.arange(SIZE)
    ends[LEVELS][0].index_put_((place,), reach[:, None] * p[LEVELS][code], accumulate=True)
    return total_variation(complete_law(ends, p), target_law(p))


def by_the_rule(
    rule: object, p: list[Tensor], chains: EveryChain, laws: Tensor, monkeypatch: pytest.MonkeyPatch
) -> float:
    """The same of a rule of the product that is handed these laws as the record."""
    drafts, tree = chains.drafts(), chain(LEVELS, torch.device("cpu"))
    record = Law("without_replacement", torch.tensor([*range(LEVELS), -1]), laws.log())
    scores = torch.stack([p[d][drafts.code[:, d]] for d in range(LEVELS + 1)], 1).log()
    made = Draft(drafts.value, tree, record, drafts.valid), Evidence(scores)
    monkeypatch.setattr(enumeration, "as_inputs", lambda *given: made)
    return enumeration.inexactness(rule, tree, p, chains.q, drafts=drafts)


RULES = (TokenWise(), BlockVerification(), Traversal())


@pytest.mark.parametrize("passes", (1, 2, 3))
def test_the_joint_distribution_of_refined_chains_is_the_targets(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unsettled = 0.0
    for seed in range(3):
        p, q, first = tables(seed)
        chains = EveryChain(q, first, passes)
        assert float(chains.chance.sum()) == pytest.approx(1, abs=1e-12)
        assert emitted_token_by_token(p, chains, chains.laws) < 1e-12
        for rule in RULES:
            assert by_the_rule(rule, p, chains, chains.laws, monkeypatch) < 1e-12
        again = chains.scores(chains.column).softmax(-1)
        unsettled += float(chains.chance[(again - chains.laws).abs().amax((1, 2)) > 1e-9].sum())
    assert (unsettled > 0.1) == (passes < LEVELS)  # the proof is of chains that further passes would change


MUTANTS: dict[str, Callable[[EveryChain], Tensor]] = {
    "the law of the pass before": lambda chains: refine(chains.scores, chains.start, chains.passes - 1, chains.uniform)[
        1
    ].softmax(-1),
    "the law behind the drafted tokens": lambda chains: chains.scores(chains.column).softmax(-1),
    "the law of the first guess": lambda chains: torch.stack([t[0] for t in tables(0)[2]]).expand_as(chains.laws),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_another_distribution_on_record_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q, first = tables(0)
    chains = EveryChain(q, first, 2)
    wrong = MUTANTS[name](chains)
    assert emitted_token_by_token(p, chains, wrong) > 1e-3
    assert by_the_rule(BlockVerification(), p, chains, wrong, monkeypatch) > 1e-3


def test_as_many_passes_as_levels_match_drawing_level_by_level() -> None:
    p, q, first = tables(1)
    chains = EveryChain(q, first, LEVELS)
    column = torch.zeros_like(chains.column)
    for level in range(LEVELS):
        column[:, level] = enumeration_draw(chains.scores(column), chains.uniform)[:, level]
    assert torch.equal(column, chains.column)


@pytest.mark.default_cells("exact-None")
@pytest.mark.parametrize("rule, words", (("exact", None), ("token", None), ("exact", (1, 2, 3, 5, 6))))
def test_sampled_text_has_the_targets_distribution(rule: str, words: tuple[int, ...] | None) -> None:
    """Also of a drafter that scores five of the eight words."""
    drafter = make("xpress", vocab=V)
    if words is not None:
        drafter = drafter.start_from(take_apart(narrow())).with_vocabulary(words)
    assert drafter.config.passes < 3
    tokens, length = drawn(drafter.with_shape(Chain(FixedLength(3))), rule, LAWS["t1_top_p0.9"])
    assert p_value(tokens, exact_law(**LAWS["t1_top_p0.9"])) > 1e-3 and length > 1.05


def test_another_distribution_on_record_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    evenly_on_record(monkeypatch)
    tokens, _ = drawn(make("xpress", vocab=V).with_shape(Chain(FixedLength(3))), "token", LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) < 1e-6
