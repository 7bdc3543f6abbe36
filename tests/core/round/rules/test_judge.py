"""A judge accepts what it is planted to accept, reads the state at the token itself, and can be switched off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import LAWS, as_inputs, contrasted_tables, every_draft
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.loop import verify
from mmspec.core.round.rules import BestExact, TargetMatch, TokenWise
from mmspec.core.round.rules.base import UnsupportedCombination
from mmspec.core.round.rules.judge import Judge
from mmspec.core.round.tree import chain, static_tree

WITHOUT, ROWS, DEPTH = "without_replacement", 200, 4


def first_number(hidden: Tensor) -> Tensor:
    """A planted head: the states hold the verdicts."""
    return hidden[..., 0]


def planted(greedy: bool = False, drawn: str = WITHOUT) -> tuple[Draft, Evidence, Tensor]:
    """Random drafts of a chain, with states that plant a verdict at every node, and these verdicts."""
    torch.manual_seed(0)
    scores, q = torch.randn(ROWS, DEPTH + 1, 5), torch.randn(ROWS, DEPTH, 5)
    right = torch.rand(ROWS, DEPTH + 1) < 0.6
    law = Law(WITHOUT, torch.tensor([*range(DEPTH), -1]), q) if drawn == WITHOUT else Law("deterministic")
    draft = Draft(torch.randint(5, (ROWS, DEPTH + 1)), chain(DEPTH), law)
    hidden = torch.where(right, 0.9, 0.1)[..., None] + torch.zeros(3)
    return draft, Evidence(scores, greedy=greedy, hidden=hidden), right


@pytest.mark.parametrize("kind", LAWS)
def test_a_threshold_above_one_is_token_wise_verification(kind: str) -> None:
    p, q = contrasted_tables(kind, 3, 3, seed=2)
    draft, evidence = as_inputs(every_draft(chain(3), q, WITHOUT), chain(3), p, q, WITHOUT)
    evidence.hidden, keys = torch.ones(draft.batch, 4, 1), Keys.of(3, draft.batch)
    (_, own), (_, other) = (verify(rule, draft, evidence, keys) for rule in (Judge(first_number, 1.01), TokenWise()))
    assert torch.equal(own.path, other.path) and torch.equal(own.correction, other.correction)


@pytest.mark.parametrize("drawn", (WITHOUT, "deterministic"))
@pytest.mark.parametrize("greedy", (True, False))
def test_a_planted_head_accepts_exactly_the_planted_nodes(greedy: bool, drawn: str) -> None:
    draft, evidence, right = planted(greedy, drawn)
    exact = TargetMatch() if greedy or drawn != WITHOUT else TokenWise()
    keys = Keys.of(5, ROWS)
    _, own = verify(Judge(first_number), draft, evidence, keys)
    alone = exact.weigh(evidence, draft).threshold
    uniform = torch.zeros(ROWS, DEPTH + 1) if greedy else keys.uniform(Purpose.ACCEPT, DEPTH + 1)
    passes = (uniform < alone) | right
    assert torch.equal(own.depth, passes[:, 1:].long().cumprod(-1).sum(-1))
    assert (own.depth > 0).any() and (own.depth < DEPTH).any()


class Early(Judge):
    """Judges a node by the state at its parent."""

    def weigh(self, evidence, draft):
        shifted = evidence.hidden.roll(1, 1)
        return super().weigh(Evidence(evidence.scores, greedy=evidence.greedy, hidden=shifted), draft)


def test_the_state_at_the_parent_is_the_wrong_state() -> None:
    draft, evidence, right = planted(greedy=True)
    off = [rule(first_number).weigh(evidence, draft).threshold[:, 1:] for rule in (Judge, Early)]
    alone = TargetMatch().weigh(evidence, draft).threshold[:, 1:]
    truth = torch.maximum(alone, right[:, 1:].float())
    assert torch.equal(off[0], truth) and not torch.equal(off[1], truth)


def test_after_the_path_the_value_is_the_exact_rules() -> None:
    draft, evidence, _ = planted(greedy=True)
    _, verdict = verify(Judge(first_number), draft, evidence, Keys.of(0, ROWS))
    assert torch.equal(verdict.correction, evidence.scores.argmax(-1).gather(1, verdict.node[:, None])[:, 0])
    draft, evidence, _ = planted()
    weights = Judge(first_number).weigh(evidence, draft)
    for node in range(DEPTH + 1):
        here = torch.full((ROWS,), node)
        own, exact = (
            rule.residual(evidence, draft, rule.weigh(evidence, draft), here)
            for rule in (Judge(first_number), TokenWise())
        )
        assert torch.equal(own, exact)
    assert weights.order == "descend"


def test_broken_and_undrawn_nodes_are_never_accepted() -> None:
    draft, evidence, _ = planted()
    draft.valid, evidence.bad = torch.rand(ROWS, DEPTH + 1) < 0.8, torch.rand(ROWS, DEPTH + 1) < 0.2
    threshold = Judge(lambda hidden: torch.ones(hidden.shape[:2])).weigh(evidence, draft).threshold
    undrawn = ~(draft.valid[:, 1:].cumprod(-1) * (~evidence.bad[:, :-1]).cumprod(-1)).bool()
    assert (threshold[:, 1:][undrawn] == 0).all()
    judged = ~undrawn & ~evidence.bad[:, 1:]
    assert (threshold[:, 1:][judged] == 1).all()


def test_it_says_that_it_is_relaxed_and_refuses_what_it_cannot_read() -> None:
    rule, (draft, evidence, _) = Judge(first_number, width=8), planted()
    assert not rule.exact and "relaxed" in rule.name and not isinstance(BestExact().rule_for(draft, evidence), Judge)
    with pytest.raises(UnsupportedCombination, match="width 8.*3"):
        verify(rule, draft, evidence, Keys.of(0, ROWS))
    with pytest.raises(UnsupportedCombination, match="none"):
        verify(rule, draft, Evidence(evidence.scores), Keys.of(0, ROWS))
    tree = Draft(torch.zeros(1, 3, dtype=torch.long), static_tree([0, 0, 0]), Law("deterministic"))
    with pytest.raises(UnsupportedCombination, match="chain"):
        verify(Judge(first_number), tree, Evidence(torch.zeros(1, 3, 3), hidden=torch.zeros(1, 3, 3)), Keys.of(0, 1))
    with pytest.raises(ValueError, match="threshold"):
        Judge(first_number, -0.1)
