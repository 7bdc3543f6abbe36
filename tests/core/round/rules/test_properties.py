"""What holds for every exact rule, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmspec.core.round.draft import Draft, Evidence, Law, root_only, run_of
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules import BlockVerification, KSeq, RecursiveRejection, Rule, TargetMatch, TokenWise, Traversal
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from tests.core.round.rules.cases import WITH, WITHOUT
from tests.core.round.rules.drafting import Fixed, drawn, round_of, rows_of
from tests.core.round.rules.mutants import AtMost

TOP = 1 - 2.0**-24
TREE = static_tree([0, 0, 0, 1, 1, 3, 2])
CHAIN = chain(5)
CASES: list[tuple[Rule, Tree, str]] = [
    (TokenWise(), CHAIN, WITHOUT),
    (BlockVerification(), CHAIN, WITHOUT),
    (Traversal(), TREE, WITHOUT),
    (Traversal(), CHAIN, WITHOUT),
    (RecursiveRejection(), TREE, WITHOUT),
    (RecursiveRejection(replacement=True), TREE, WITH),
    (KSeq(), TREE, WITH),
    (TargetMatch(), TREE, WITHOUT),
    (TargetMatch(), TREE, "deterministic"),
]
IDS = [f"{rule.name}-{'tree' if tree is TREE else 'chain'}-{how}" for rule, tree, how in CASES]
every_rule = pytest.mark.parametrize(("rule", "tree", "how"), CASES, ids=IDS)
RATIO = [case for case in CASES if not isinstance(case[0], TargetMatch)]
ratio_rules = pytest.mark.parametrize(("rule", "tree", "how"), RATIO, ids=IDS[: len(RATIO)])


def scores(rows: int, tree: Tree, size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, tree.nodes, size, generator=generator) * 2
    return p, p + torch.randn(p.shape, generator=generator)


def case(tree: Tree, how: str, rows: int = 64, size: int = 40, seed: int = 0) -> tuple[Draft, Evidence]:
    p, q = scores(rows, tree, size, seed)
    return drawn(tree, p, None if how == "deterministic" else q, how, seed)


@ratio_rules
@pytest.mark.parametrize("u", (0.0, TOP))
def test_a_drafter_that_is_the_target_is_always_accepted(rule: Rule, tree: Tree, how: str, u: float) -> None:
    p, _ = scores(200, tree, 450)
    draft, evidence = drawn(tree, p, p.clone(), how)
    if isinstance(rule, KSeq):
        draft.valid = draft.valid & (tree.sibling_rank == 0)
    verdict = round_of(rule, draft, evidence, Fixed(200, u, 0.5))
    leaf = int(tree.post_rank[0].argmin())
    assert (verdict.node == leaf).all() and (verdict.depth == tree.depth[0, leaf]).all()


@every_rule
def test_disjoint_supports_accept_nothing_and_emit_from_the_target(rule: Rule, tree: Tree, how: str) -> None:
    p, q = scores(100, tree, 10)
    p[..., 5:], q[..., :5] = -torch.inf, -torch.inf
    draft, evidence = drawn(tree, p, q, WITHOUT if how == "deterministic" else how)
    draft.law = draft.law if how != "deterministic" else Law(how)
    verdict = round_of(rule, draft, evidence, Fixed(100, 0.0, 0.3))
    assert (verdict.node == 0).all() and (verdict.correction < 5).all()
    weights = rule.weigh(evidence, draft)
    law = rule.residual(evidence, draft, weights, verdict.node)
    torch.testing.assert_close(law / law.sum(-1, keepdim=True), p[:, 0].softmax(-1))


@every_rule
def test_a_target_that_is_certain_emits_its_value(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how, size=6)
    evidence.scores = torch.full_like(evidence.scores, -torch.inf)
    evidence.scores[..., 4] = 0.0
    verdict = round_of(rule, draft, evidence, Keys.of(0, 64))
    run, count = run_of(draft, verdict)
    assert (run == 4).all()


@every_rule
@pytest.mark.parametrize("accept", (0.0, TOP))
@pytest.mark.parametrize("residual", (0.0, TOP))
def test_a_value_of_probability_zero_is_never_emitted(
    rule: Rule, tree: Tree, how: str, accept: float, residual: float
) -> None:
    for seed in range(4):
        verdict, draft, gone = _with_zeros(rule, tree, how, accept, residual, seed)
        assert not _emits(verdict, draft, gone)


def test_passing_at_u_equal_to_the_threshold_emits_impossible_values() -> None:
    verdict, draft, gone = _with_zeros(AtMost(RecursiveRejection()), TREE, WITHOUT, 0.0, 0.5, 0)
    assert _emits(verdict, draft, gone)


def _with_zeros(rule: Rule, tree: Tree, how: str, accept: float, residual: float, seed: int) -> tuple:
    p, q = scores(64, tree, 6, seed)
    gone = torch.rand(p.shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    gone[..., 2] = False
    p[gone] = -torch.inf
    draft, evidence = drawn(tree, p, q, WITHOUT if how == "deterministic" else how, seed)
    draft.law = draft.law if how != "deterministic" else Law(how)
    return round_of(rule, draft, evidence, Fixed(64, accept, residual)), draft, gone


def _emits(verdict: object, draft: Draft, gone: torch.Tensor) -> bool:
    """Whether any emitted value was impossible after the node before it."""
    run, count = run_of(draft, verdict)
    column = torch.arange(run.shape[1])
    before = gone[torch.arange(len(run))[:, None], verdict.path]
    return bool((before.gather(2, run[..., None])[..., 0] & (column < count[:, None])).any())


@pytest.mark.parametrize("seed", range(3))
def test_traversal_of_a_chain_is_block_verification(seed: int) -> None:
    draft, evidence = case(CHAIN, WITHOUT, size=7, seed=seed)
    block, traversal = BlockVerification().weigh(evidence, draft), Traversal().weigh(evidence, draft)
    torch.testing.assert_close(block.threshold, traversal.threshold, atol=2e-6, rtol=1e-5)
    for node in range(CHAIN.nodes):
        here = torch.full((draft.batch,), node)
        laws = [
            r.residual(evidence, draft, w, here) for r, w in ((BlockVerification(), block), (Traversal(), traversal))
        ]
        used = (block.threshold[:, node] > 1e-6) & (laws[0].sum(-1) > 1e-5)
        laws = [law[used] / law[used].sum(-1, keepdim=True) for law in laws]
        torch.testing.assert_close(laws[0], laws[1], atol=2e-3, rtol=2e-3)


def test_recursive_rejection_of_a_chain_is_token_wise() -> None:
    draft, evidence = case(CHAIN, WITHOUT)
    expected = TokenWise().weigh(evidence, draft).threshold
    for rule in (RecursiveRejection(), RecursiveRejection(replacement=True), KSeq()):
        torch.testing.assert_close(rule.weigh(evidence, draft).threshold[:, 1:], expected[:, 1:], atol=1e-6, rtol=1e-6)


@every_rule
def test_rows_do_not_know_of_each_other(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how)
    seeds = Keys.of(9, 64).seeds
    whole = round_of(rule, draft, evidence, Keys(seeds))
    for rows in (
        torch.randperm(64, generator=torch.Generator().manual_seed(1)),
        torch.tensor([5]),
        torch.arange(10, 30),
    ):
        part = round_of(rule, *rows_of(draft, evidence, rows), Keys(seeds[rows]))
        assert (part.node == whole.node[rows]).all() and (part.correction == whole.correction[rows]).all()


@every_rule
def test_a_constant_added_to_scores_changes_nothing(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how)
    law = draft.law if draft.law.scores is None else replace(draft.law, scores=draft.law.scores - 3.0)
    moved = rule.weigh(Evidence(evidence.scores + 7.5), replace(draft, law=law))
    torch.testing.assert_close(moved.threshold, rule.weigh(evidence, draft).threshold, atol=2e-4, rtol=2e-4)


@every_rule
def test_undrawn_nodes_do_not_matter(rule: Rule, tree: Tree, how: str) -> None:
    if tree is CHAIN:
        wide = chain(CHAIN.nodes + 2)
    else:  # further children of nodes 2, 6 and the root, behind all others
        wide = static_tree([*tree.parent[0].tolist(), 2, 6, 0])
    draft, evidence = case(tree, how)
    extra = wide.nodes - tree.nodes
    pad = torch.full((64, extra), -1)
    poison = torch.full((64, extra, 40), torch.nan)
    law = draft.law
    if law.scores is not None:
        law = Law(how, torch.arange(wide.nodes), torch.cat((law.scores, poison), 1))
    more = Draft(torch.cat((draft.value, pad), 1), wide, law, torch.cat((draft.valid, pad > 0), 1))
    seen = Evidence(torch.cat((evidence.scores, torch.zeros_like(poison)), 1))
    before, after = rule.weigh(evidence, draft), rule.weigh(seen, more)
    torch.testing.assert_close(after.threshold[:, 1 : tree.nodes], before.threshold[:, 1:], atol=1e-6, rtol=1e-6)
    assert (after.threshold[:, tree.nodes :] == 0).all()
    seeds = Keys.of(4, 64).seeds
    first, second = round_of(rule, draft, evidence, Keys(seeds)), round_of(rule, more, seen, Keys(seeds))
    assert (first.node == second.node).all() and (first.correction == second.correction).all()


@every_rule
@pytest.mark.poison
def test_distributions_that_no_child_was_drawn_from_are_not_read(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how)
    if draft.law.scores is None:
        return
    clean = round_of(rule, draft, evidence, Keys.of(4, 64))
    leaf = torch.ones(tree.nodes, dtype=torch.bool)
    leaf[tree.parent[0, 1:]] = False
    record = draft.law.scores.clone()
    record[:, leaf] = torch.nan
    row = torch.where(leaf, -1, torch.arange(tree.nodes))
    for law in (Law(how, torch.arange(tree.nodes), record), Law(how, row, record)):
        found = round_of(rule, replace(draft, law=law), evidence, Keys.of(4, 64))
        assert (found.node == clean.node).all() and (found.correction == clean.correction).all()


@every_rule
def test_nothing_is_accepted_after_a_bad_node(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how)
    whole = round_of(rule, draft, evidence, Keys.of(4, 64))
    bad = torch.zeros(64, tree.nodes, dtype=torch.bool)
    bad[:32, 1] = True
    scores = torch.where(bad[..., None], 0.0, evidence.scores)
    for greedy in (False, True) if isinstance(rule, TargetMatch) else (False,):
        found = round_of(rule, draft, Evidence(scores, greedy, bad=bad), Fixed(64, 0.0, 0.5))
        assert not tree.ancestor[0, found.node[:32], 1][found.node[:32] != 1].any()
        assert ((found.correction >= 0) & (found.correction < 40)).all()
    part = round_of(rule, draft, Evidence(scores, bad=bad), Keys.of(4, 64))
    assert (part.node[32:] == whole.node[32:]).all() and (part.correction[32:] == whole.correction[32:]).all()


@every_rule
def test_a_draft_that_is_not_a_number_is_dropped(rule: Rule, tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how)
    if draft.law.scores is None or isinstance(rule, TargetMatch):
        return
    draft.law.scores[:8] = torch.nan
    found = round_of(rule, draft, evidence, Keys.of(4, 64))
    assert (found.node[:8] == 0).all() and ((found.correction >= 0) & (found.correction < 40)).all()


@every_rule
def test_a_root_alone_is_plain_sampling(rule: Rule, tree: Tree, how: str) -> None:
    p, _ = scores(50, chain(0), 12)
    verdict = round_of(rule, root_only(torch.full((50,), 999)), Evidence(p), Keys.of(1, 50))
    plain = round_of(TargetMatch(), root_only(torch.zeros(50, dtype=torch.long)), Evidence(p), Keys.of(1, 50))
    assert (verdict.node == 0).all() and (verdict.depth == 0).all()
    assert (verdict.correction == plain.correction).all()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("rule", "how"),
    [
        (Traversal(), WITHOUT),
        (RecursiveRejection(), WITHOUT),
        (RecursiveRejection(True), WITH),
        (KSeq(), WITH),
        (TargetMatch(), WITHOUT),
        (TargetMatch(), WITH),
        (TargetMatch(), "deterministic"),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_rows_of_different_shapes_are_judged_as_if_alone(rule: Rule, how: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, nodes = 6, 9
    parents = [[0] + [int(torch.randint(i, (), generator=generator)) for i in range(1, nodes)] for _ in range(rows)]
    trees = [static_tree(p) for p in parents]
    p, q = scores(rows, trees[0], 5, seed)
    alone = []
    for row, tree in enumerate(trees):
        one = p[row : row + 1], None if how == "deterministic" else q[row : row + 1]
        alone.append(drawn(tree, *one, how, seed=row))
    shape = dynamic_tree(torch.tensor(parents), max(t.max_depth for t in trees), max(t.max_rank for t in trees) + 1)
    law = Law(how) if how == "deterministic" else Law(how, torch.arange(nodes), q)
    together = Draft(torch.cat([d.value for d, _ in alone]), shape, law, torch.cat([d.valid for d, _ in alone]))
    seeds = Keys.of(seed, rows).seeds
    for greedy in (False, True) if isinstance(rule, TargetMatch) else (False,):
        found = round_of(rule, together, Evidence(p, greedy), Keys(seeds))
        for row, (draft, evidence) in enumerate(alone):
            evidence.greedy = greedy
            single = round_of(rule, draft, evidence, Keys(seeds[row : row + 1]))
            assert int(found.node[row]) == int(single.node) and int(found.correction[row]) == int(single.correction)
            assert int(found.depth[row]) == int(single.depth)


def test_greedy_follows_the_argmax_and_ties_go_to_the_lowest_index() -> None:
    draft, evidence = case(TREE, "deterministic", rows=1, size=8)
    best = evidence.scores.argmax(-1)
    draft.value[0] = torch.tensor([0, (best[0, 0] + 1) % 8, best[0, 0], 0, 0, 0, best[0, 2]])
    evidence.greedy = True
    verdict = round_of(TargetMatch(), draft, evidence, Fixed(1, TOP, TOP))
    assert verdict.path[0].tolist()[:3] == [0, 2, 6] and int(verdict.correction) == int(best[0, 6])
    evidence.scores = torch.zeros_like(evidence.scores)
    assert int(round_of(TargetMatch(), draft, evidence, Fixed(1, TOP, TOP)).correction) == 0


def test_a_vocabulary_that_is_not_the_targets_is_refused() -> None:
    draft, evidence = case(CHAIN, WITHOUT)
    draft.law.scores = draft.law.scores[..., :-1]
    with pytest.raises(ValueError, match="expected scores over the target's 40 values, got 39"):
        TokenWise().weigh(evidence, draft)


def test_peaked_drafts_keep_their_second_child_exact() -> None:
    # nearly all of q lies on the first child: the share of the second must not come from 1 - q(first)
    q = torch.full((1, 3, 4), -30.0)
    q[..., 0], q[..., 1] = 0.0, -20.0
    p = torch.zeros(1, 3, 4)
    draft = Draft(torch.tensor([[0, 0, 1]]), static_tree([0, 0, 0]), Law(WITHOUT, torch.arange(3), q))
    single = RecursiveRejection().weigh(Evidence(p), draft).threshold
    double = (
        RecursiveRejection()
        .weigh(Evidence(p.double()), replace(draft, law=Law(WITHOUT, torch.arange(3), q.double())))
        .threshold
    )
    torch.testing.assert_close(single.double(), double, atol=1e-5, rtol=1e-4)
