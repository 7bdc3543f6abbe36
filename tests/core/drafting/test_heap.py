"""Drawn trees that grow best first: their joint law by enumeration, their draws against a plain heap, and requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.certify.enumeration import (
    EnumeratedDrafts,
    enumerate_rule,
    joint_law,
    random_tables,
    target_law,
    total_variation,
)
from mmspec.core.drafting import heap
from mmspec.core.drafting.growth import DraftBudget, grow_draft
from mmspec.core.drafting.heap import BestFirst
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.draft import Draft
from mmspec.core.round.rules import RecursiveRejection, Rule, Traversal
from mmspec.core.round.tree import static_tree
from tests.vlm.drafters.rows import row_of
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

V = 3
ORDERS = torch.tensor(list(permutations(range(V))))  # the draws of a node, in order
SHAPES = (
    BestFirst(3, 3, 2),
    BestFirst(4, 3, 2, 0.2),
    BestFirst(5, 3, 2, 0.05),
    BestFirst(5, 3, 2, 0.9),
    BestFirst(4, 2, 3),
    BestFirst(5, 2, 3, 0.3),
)


class Tables:
    """A drafter's state over context tables: a feature is the number of a prefix, and laws are recorded."""

    independent, ids = False, None

    def __init__(self, q: list[Tensor], rows: int):
        self.q, self.root = q, torch.zeros(rows, 1)
        self.cache = SimpleNamespace(lengths=[], length=None)
        self.laws: list[Tensor] = []

    def logits(self, out: Tensor, depth: int) -> Tensor:
        self.laws.append(self.q[depth - 1][out[..., 0].long()])
        return self.laws[-1].log().float()

    law = logits

    def expand(self, token: Tensor, hidden: Tensor, *_: object) -> Tensor:
        return hidden * V + token[..., None]


class Ordered:
    """Keys whose noise makes every parent of a draft draw in an order of its own: `order` int64 [R, slots]."""

    def __init__(self, order: Tensor):
        self.order, self.used = order, 0

    def gumbel(self, purpose: object, parents: int, size: int, step: int) -> Tensor:
        drawn = ORDERS[self.order[:, self.used : self.used + parents]]
        self.used += parents
        places = torch.arange(size, 0, -1).float() * 1000
        return torch.zeros(drawn.shape).scatter_(-1, drawn, places.expand(drawn.shape))


def every_tree(
    shape: DynamicTree,
    q: list[Tensor],
    greedy: bool = False,
    make_state: Callable[[list[Tensor], int], Tables] = Tables,
) -> tuple[Draft, Tensor, Tensor]:
    """Return all drafts of a shape, their probabilities float64 [R], and the orders of their draws int64 [R, slots]."""
    slots = 1 + (shape.depth - 1) * shape.width
    order = torch.zeros(1, slots, dtype=torch.long)
    if not greedy:
        order = torch.tensor(list(product(range(len(ORDERS)), repeat=slots)))
    rows = len(order)
    state, target = (
        make_state(q, rows),
        SimpleNamespace(
            batch=rows, pending=torch.zeros(rows, dtype=torch.long), device="cpu", greedy=greedy, live=[True] * rows
        ),
    )
    keys = Ordered(order)
    draft = grow_draft(state, target, shape, keys, DraftBudget(shape.depth, [shape.depth] * rows))
    draft.valid = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid
    laws = torch.cat(state.laws, 1)
    chance = torch.ones(rows, dtype=torch.float64)
    for slot in range(0 if greedy else laws.shape[1]):
        drawn = laws[:, slot].gather(1, ORDERS[order[:, slot]])
        chance = chance * (drawn / drawn.flip(1).cumsum(1).flip(1)).prod(1)
    return draft, chance / len(ORDERS) ** (slots - laws.shape[1]), order


def codes_of(draft: Draft) -> Tensor:
    """Return int64 [R, N], the numbers of the nodes' prefixes."""
    code = torch.zeros_like(draft.value)
    for node in range(1, draft.tree.nodes):
        code[:, node] = code.gather(1, draft.tree.parent[:, node, None])[:, 0] * V + draft.value[:, node]
    return code


def inexactness(rule: Rule, draft: Draft, chance: Tensor, p: list[Tensor], q: list[Tensor]) -> float:
    """Return the total variation of the joint law of all drafts, summed over their shapes."""
    code, kinds = codes_of(draft), torch.cat([draft.tree.parent, draft.valid.long()], 1)
    shapes, kind = kinds.unique(dim=0, return_inverse=True)
    joint = torch.zeros(1, V ** len(p), dtype=torch.float64)
    for number, shape in enumerate(shapes):
        rows, tree = kind == number, static_tree(shape[: draft.tree.nodes].tolist())
        drafts = EnumeratedDrafts(draft.value[rows], code[rows], draft.valid[rows], chance[rows])
        law = joint_law(enumerate_rule(rule, tree, p, q, drafts=drafts), p[: tree.max_depth + 1])
        for table in p[tree.max_depth + 1 :]:
            law = (law[..., None] * table).flatten(1)
        joint += law
    return total_variation(joint, target_law(p))


def tables(seed: int, depth: int) -> tuple[list[Tensor], list[Tensor]]:
    return random_tables(V, depth + 1, seed), random_tables(V, depth, seed + 100)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_the_joint_law_is_the_targets(rule: Rule, shape: BestFirst) -> None:
    p, q = tables(shape.nodes, shape.depth)
    draft, chance, _ = every_tree(shape, q)
    assert float(chance.sum()) == pytest.approx(1)
    assert shape.floor == 0.9 or len(draft.tree.parent.unique(dim=0)) > 1  # such a floor makes a single draw a level
    assert inexactness(rule, draft, chance, p, q) < 1e-12


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_a_cut_at_the_likeliest_drawn_nodes_is_inexact(rule: Rule) -> None:
    p, q = tables(4, 3)
    draft, chance, _ = every_tree(BestFirst(5, 3, 2, 0.2), q)
    share = torch.ones(draft.value.shape, dtype=torch.float64)
    code, depth = codes_of(draft), draft.tree.depth
    for node in range(1, draft.tree.nodes):
        law = torch.stack([q[int(d) - 1].flatten()[c] for d, c in zip(depth[:, node], code[:, node], strict=True)])
        share[:, node] = share.gather(1, draft.tree.parent[:, node, None])[:, 0] * law
    least = share.argsort(1)[:, :2]
    cut = replace(draft, valid=draft.valid.scatter(1, least, False))
    assert inexactness(rule, cut, chance, p, q) > 1e-3


def test_the_record_holds_the_law_of_every_parent() -> None:
    _, q = tables(5, 3)
    draft, _, _ = every_tree(BestFirst(5, 3, 2, 0.05), q)
    code = codes_of(draft)
    for node in range(1, draft.tree.nodes):
        parent = draft.tree.parent[:, node]
        for row in range(0, len(code), 97):
            above, depth = int(parent[row]), int(draft.tree.depth[row, node])
            if draft.valid[row, node]:
                law = draft.law.scores[row, draft.law.row[above]].softmax(-1)
                assert torch.allclose(law, q[depth - 1][code[row, above]].float())


def heap_draws(q: list[Tensor], drawn: dict[int, list[int]], floor: float, renormalised: bool) -> set[tuple[int, ...]]:
    """The paths of all draws of a heap down to a value of `floor`, where the root and depth 1 draw in given orders."""
    made, heap = set(), [(1.0, (), ())]
    while heap:
        value, node, tried = heap.pop()
        if value < floor or len(tried) == 2:
            continue
        law = q[len(node)][node[0] if node else 0].clone()
        if renormalised and tried:
            law[list(tried)] = 0
            law = law / law.sum()
        token = drawn[node[0] if node else -1][len(tried)]
        made.add((*node, token))
        heap.append((value * (1 - float(law[token])), node, (*tried, token)))
        if not node:
            heap.append((value * float(law[token]), (token,), ()))
    return made


def test_the_draws_are_those_of_a_heap() -> None:
    """The chances of the paper are over the law without earlier siblings; the law as it was makes other draws."""
    same, other = [], []
    for seed, floor in product(range(3), (0.1, 0.2, 0.3)):
        _, q = tables(seed, 2)
        draft, _, order = every_tree(BestFirst(4, 2, 2, floor), q)
        for row in range(len(order)):
            root = ORDERS[order[row, 0]].tolist()
            share = [float(q[0][0, token]) for token in root[:2]]
            left = 1.0 >= floor, 1 - share[0] >= floor  # which of the root's draws are made, and so expanded
            slots = sorted((n for n in range(2) if left[n]), key=lambda n: -share[n])
            drawn = {root[n]: ORDERS[order[row, 1 + at]].tolist() for at, n in enumerate(slots)} | {-1: root}
            wanted, mutant = (heap_draws(q, drawn, floor, renormalised) for renormalised in (True, False))
            depth = draft.tree.depth[row].tolist()
            found = {
                tuple(draft.value[row, draft.tree.path[row, node, 1 : depth[node] + 1]].tolist())
                for node in range(1, draft.tree.nodes)
                if draft.valid[row, node]
            }
            if len(wanted) == 4:  # other drafts are cut, or filled
                same.append(wanted == found)
                other.append(mutant == found)
    assert len(same) > 10 and all(same) and not all(other)


def test_a_greedy_request_grows_the_tree_of_eagle_2() -> None:
    _, q = tables(1, 3)
    best, dynamic = (every_tree(shape, q, greedy=True)[0] for shape in (BestFirst(5, 3, 2), DynamicTree(5, 3, 2)))
    assert torch.equal(best.value, dynamic.value) and torch.equal(best.tree.parent, dynamic.tree.parent)
    assert best.law.kind == "onehot"
    share = {(): 1.0}
    for depth, table in enumerate(q):
        share |= {
            (*path, token): share[path] * float(table[int("0" + "".join(map(str, path)), V), token])
            for path in list(share)
            if len(path) == depth
            for token in range(V)
        }
    found = [
        tuple(best.value[0, best.tree.path[0, node, 1 : int(best.tree.depth[0, node]) + 1]].tolist())
        for node in range(1, 6)
    ]
    top = sorted(((s, path) for path, s in share.items() if path), reverse=True)[:5]
    assert {path for _, path in top} == set(found)


@pytest.mark.parametrize("name", ("eagle", pytest.param("msd", marks=pytest.mark.whole), "medusa"))
def test_a_row_alone_draws_what_it_draws_in_a_batch(name: str) -> None:
    inputs, drafter = prompt("llava", 2, "start", 3), make(name).with_shape(BestFirst(8, 3, 3))
    sampled = dict(drafter=drafter, do_sample=True, max_new_tokens=10)
    together = mmspec.generate(tiny("llava"), seed=[3, 4, 5], **sampled, **inputs)
    for row in range(3):
        alone = mmspec.generate(tiny("llava"), seed=[3 + row], **sampled, **row_of(inputs, row))
        assert torch.equal(alone[0, -10:], together[row, -10:])


def test_greedy_words_are_the_targets_own() -> None:
    inputs, drafter = prompt("llava", 2, "start", 3), make("eagle").with_shape(BestFirst(8, 3, 3))
    wanted = tiny("llava").generate(**inputs, max_new_tokens=10, do_sample=False)
    assert torch.equal(
        mmspec.generate(tiny("llava"), drafter=drafter, max_new_tokens=10, do_sample=False, **inputs), wanted
    )


def test_a_floor_is_a_chance() -> None:
    with pytest.raises(ValueError, match="floor"):
        BestFirst(floor=1.0)


class Picky:
    """A filter by the chance, the entropy and the depth of a node, which notes the levels that it was asked for."""

    def __init__(self, least: float = 0.15):
        self.least, self.asked = least, []

    def keeps(self, features: Tensor, drawn: bool) -> Tensor:
        self.asked.append(features)
        chance, entropy, depth = features.unbind(-1)
        return chance.exp() >= self.least + 0.1 * entropy * (depth > 1)


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_a_filter_of_nodes_keeps_the_targets_law(rule: Rule) -> None:
    p, q = tables(4, 3)
    plain, _, _ = every_tree(BestFirst(5, 3, 2, 0.05), q)
    draft, chance, _ = every_tree(BestFirst(5, 3, 2, 0.05, score=Picky()), q)
    assert 0.5 < float(draft.valid.sum() / plain.valid.sum()) < 0.95
    assert inexactness(rule, draft, chance, p, q) < 1e-12


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_a_filter_that_reads_the_drawn_value_is_inexact(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = tables(4, 3)
    drawn, pick_apart = [], heap.pick_apart

    def picked(*args: object) -> tuple[Tensor, Tensor]:
        drawn.append(pick_apart(*args))
        return drawn[-1]

    def kept(score: object, chance: Tensor, scores: Tensor, *_: object) -> Tensor:
        return scores.softmax(-1).gather(-1, drawn[-1][1]) >= 0.3

    monkeypatch.setattr(heap, "pick_apart", picked)
    monkeypatch.setattr(heap, "kept_nodes", kept)
    draft, chance, _ = every_tree(BestFirst(5, 3, 2, 0.05, score=Picky()), q)
    assert inexactness(rule, draft, chance, p, q) > 1e-3


def test_a_filter_of_drawn_nodes_never_reads_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probability of the last draws of the root is NaN; they are the values of their own nodes alone."""
    (_, q), law_of, score, calls = tables(4, 1), heap.law_of, Picky(0.0), []

    def poisoned(scores: Tensor) -> Tensor:
        law = law_of(scores)
        calls.append(law)
        last = ORDERS[torch.arange(len(ORDERS)), 1][:, None, None]
        return law.scatter(-1, last, torch.nan) if len(calls) == 1 else law  # the filter's entropy is of the whole law

    clean = Picky(0.0)
    every_tree(BestFirst(2, 1, 2, score=clean), q)
    monkeypatch.setattr(heap, "law_of", poisoned)
    draft, _, _ = every_tree(BestFirst(2, 1, 2, score=score), q)
    assert len(calls) == 2 and torch.equal(score.asked[0], clean.asked[0]) and draft.tree.nodes == 2


@pytest.mark.parametrize("greedy", (False, True), ids=("drawn", "greedy"))
def test_a_constant_score_is_the_plain_heap(greedy: bool) -> None:
    _, q = tables(2, 3)
    plain, constant = (every_tree(BestFirst(5, 3, 2, 0.05, score=score), q, greedy)[0] for score in (None, Picky(-9)))
    for one, other in ((plain.value, constant.value), (plain.tree.parent, constant.tree.parent)):
        assert torch.equal(one, other)
    assert torch.equal(plain.valid, constant.valid)


def test_a_filter_of_picked_nodes_reads_their_probability_and_saves_passes() -> None:
    _, q = tables(1, 3)
    plain, score = every_tree(BestFirst(5, 3, 2), q, greedy=True)[0], Picky(0.3)
    few = every_tree(BestFirst(5, 3, 2, score=score), q, greedy=True)[0]
    asked = torch.cat(score.asked, 1)[0]
    kept = int((asked[:, 0].exp() >= 0.3 + 0.1 * asked[:, 1] * (asked[:, 2] > 1)).sum())
    assert few.tree.nodes == 1 + kept < plain.tree.nodes and bool(few.valid.all())
    none = every_tree(BestFirst(5, 3, 2, score=Picky(2.0)), q, greedy=True)[0]
    assert none.tree.nodes == 2 and not bool(none.valid[:, 1:].any())
    with pytest.raises(ValueError, match="score: expected a filter of nodes"):
        BestFirst(score="confidence")
