"""Several rounds with the real random keys emit the target's law, and keys with a mistake do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.mutants import NoResidual
from mmspec.certify.samples import chi_square
from mmspec.core.round.draft import Drawn
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    KSeq,
    RecursiveRejection,
    Rule,
    TargetMatch,
    TokenWise,
    Traversal,
)
from mmspec.core.round.tree import Tree, chain, static_tree
from tests.core.round.rules import noise
from tests.core.round.rules.cases import WITH, WITHOUT
from tests.core.round.rules.simulation import decode_rounds, joint_test, second_round_test

ROWS, LENGTH = 30_000, 5
CHAIN, TREE = chain(3), static_tree([0, 0, 0, 1, 1, 2])


def markov(size: int) -> tuple[Tensor, Tensor]:
    """A target and a drafter that mostly disagree: half of the drafter's law is the target's turned upside down."""
    generator = torch.Generator().manual_seed(size)
    p = torch.softmax(1.2 * torch.randn(size, size, generator=generator, dtype=torch.float64), -1)
    return p, (torch.softmax(-p.log(), -1) + p) / 2


def failed(
    rule: Rule, tree: Tree, keys: Keys, drawn: Drawn = WITHOUT, size: int = 3, record: Tensor | None = None
) -> bool:
    p, q = markov(size)
    rounds = decode_rounds(rule, tree, p, q, keys, LENGTH, drawn, record)
    return not (joint_test(rounds, p).passed and second_round_test(rounds, p).passed)


@pytest.mark.parametrize(
    ("rule", "tree", "drawn"),
    [
        (TokenWise(), CHAIN, WITHOUT),
        (BlockVerification(), CHAIN, WITHOUT),
        (Traversal(), TREE, WITHOUT),
        (RecursiveRejection(), TREE, WITHOUT),
        (RecursiveRejection(replacement=True), TREE, WITH),
        (KSeq(), TREE, WITH),
        (TargetMatch(), TREE, WITH),
        (TargetMatch(), TREE, "deterministic"),
        (BestExact(), TREE, WITHOUT),
    ],
    ids=lambda x: getattr(x, "name", x if isinstance(x, str) else ""),
)
def test_several_rounds_are_exact(rule: Rule, tree: Tree, drawn: Drawn) -> None:
    assert not failed(rule, tree, Keys.of(1, ROWS), drawn)


@pytest.mark.parametrize(
    ("rule", "tree"), [(BlockVerification(), CHAIN), (Traversal(), TREE)], ids=("block", "traversal")
)
def test_sixteen_values_are_exact(rule: Rule, tree: Tree) -> None:
    p, q = markov(16)
    rounds = decode_rounds(rule, tree, p, q, Keys.of(2, ROWS), 4)
    rounds.token = rounds.token[:, :3]
    assert joint_test(rounds, p).passed


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("mistake", (noise.ResidualIsDraft, noise.AcceptIsDraft), ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("rule", "tree"),
    [(TokenWise(), CHAIN), (BlockVerification(), CHAIN), (Traversal(), TREE)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_shared_noise_shows(mistake: type[Keys], rule: Rule, tree: Tree) -> None:
    assert failed(rule, tree, mistake(Keys.of(1, ROWS).seeds))


@pytest.mark.parametrize(
    ("rule", "tree"), [(BlockVerification(), CHAIN), (Traversal(), TREE)], ids=("block", "traversal")
)
def test_the_same_noise_in_all_rounds_is_detected(rule: Rule, tree: Tree) -> None:
    assert failed(rule, tree, noise.OneRound(Keys.of(1, ROWS).seeds))


@pytest.mark.parametrize("rule", (BlockVerification(), Traversal()), ids=lambda r: r.name)
def test_noise_of_later_positions_reused_by_the_next_round_shows(rule: Rule) -> None:
    # a law under which a late test is passed or failed on its own account after an early failure
    p = torch.tensor([[0.6, 0.4], [0.25, 0.75]], dtype=torch.float64)
    q = torch.tensor([[0.94, 0.06], [0.7, 0.3]], dtype=torch.float64)
    keys = Keys.of(1, 30_000)
    rounds = decode_rounds(rule, chain(4), p, q, keys, 6)
    assert joint_test(rounds, p).passed and second_round_test(rounds, p).passed
    rounds = decode_rounds(noise.CountsPositions(rule), chain(4), p, q, noise.ByPosition(keys.seeds), 6)
    assert not joint_test(rounds, p).passed and not second_round_test(rounds, p).passed


def test_a_skipped_residual_shows() -> None:
    assert failed(NoResidual(BlockVerification()), CHAIN, Keys.of(1, ROWS))


def test_a_record_that_differs_from_the_draft_distribution_is_detected() -> None:
    _, q = markov(3)
    assert failed(BlockVerification(), CHAIN, Keys.of(1, ROWS), record=(q.log() * 0.5).softmax(-1))


def test_chi_square_fails_on_the_impossible_and_merges_the_rare() -> None:
    assert not chi_square(torch.tensor([90, 10]), torch.tensor([100.0, 0.0])).passed
    assert chi_square(torch.tensor([50, 48, 1, 1]), torch.tensor([49.0, 49.0, 1.0, 1.0])).freedom == 2
