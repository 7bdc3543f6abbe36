"""The calibrated allocation of PPD: trees of likeliest paths, and probes removed where they cost least."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.probe_plan import ProbePlan
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.training.prompts import PromptObjective, rank_accuracies
from mmspec.vlm.training.recipes import equal_recipe
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import prompt, tiny
from tests.vlm.training.test_prompts import answered

TABLE = ((0.6, 0.2, 0.1), (0.4, 0.2, 0.1), (0.3, 0.1, 0.05))


def chances_of(tree: tuple[int, ...]) -> list[float]:
    """The chance of each node: the product of the table's entries along its path."""
    chances, depths, children = [1.0], [0], [0] * len(tree)
    for node in range(1, len(tree)):
        above = tree[node]
        chances.append(chances[above] * TABLE[depths[above]][children[above]])
        depths.append(depths[above] + 1)
        children[above] += 1
    return chances


def test_the_tree_holds_the_likeliest_paths() -> None:
    plan = ProbePlan.of(TABLE, nodes=6, budget=20)
    paths = [1.0]
    for depth in (1, 2, 3):
        ranks = product(range(3), repeat=depth)
        paths += [torch.tensor([TABLE[d][r] for d, r in enumerate(path)]).prod().item() for path in ranks]
    assert chances_of(plan.trees[3]) == pytest.approx(sorted(paths, reverse=True)[:7])
    assert plan.trees[0] == (0,) and max(map(len, plan.trees)) == 7
    assert plan.values == pytest.approx([sum(chances_of(tree)) for tree in plan.trees])


def simulated(plan: ProbePlan, rounds: int) -> tuple[float, list[float]]:
    """The tokens of a round and the shares of the states, by drawing which node each path ends at."""
    torch.manual_seed(0)
    state, tokens, seen = 0, 0.0, [0] * 4
    for _ in range(rounds):
        tree, seen[state] = plan.trees[state], seen[state] + 1
        chances, node = chances_of(tree), 0
        while True:
            children = [child for child in range(1, len(tree)) if tree[child] == node]
            share = torch.tensor([chances[child] / chances[node] for child in children])
            drawn = float(torch.rand(())) - share.cumsum(0)
            tokens += 1
            if not len(children) or float(drawn[-1]) >= 0:
                break
            node = children[int((drawn >= 0).sum())]
        state = sum(chain // 3 == node for chain in plan.chains[state])
    return tokens / rounds, [count / rounds for count in seen]


def test_the_expected_tokens_are_those_of_a_long_run() -> None:
    plan = ProbePlan.of(TABLE, nodes=3, budget=8)
    assert all(len(tree) + len(own) <= 8 for tree, own in zip(plan.trees, plan.chains, strict=True))
    assert len({sum(chain // 3 == 0 for chain in own) for own in plan.chains}) > 1  # not the same everywhere
    tokens, shares = simulated(plan, 4000)
    assert tokens == pytest.approx(plan.tokens, abs=0.03) and shares == pytest.approx(plan.shares, abs=0.03)


def test_probes_are_kept_where_the_next_round_gains_most() -> None:
    """Against all ways to keep as many probes in chains, by the next round's expected tokens."""
    plan = ProbePlan.of(TABLE, nodes=2, budget=6)
    for tree, own in zip(plan.trees, plan.chains, strict=True):
        chances = chances_of(tree)
        ends = [
            chance - sum(chances[c] for c in range(1, len(tree)) if tree[c] == v) for v, chance in enumerate(chances)
        ]

        def next_tokens(lengths: tuple[int, ...], ends: list[float] = ends) -> float:
            return sum(end * plan.values[length] for end, length in zip(ends, lengths, strict=True))

        found = next_tokens(tuple(sum(chain // 3 == node for chain in own) for node in range(len(tree))))
        others = (lengths for lengths in product(range(4), repeat=len(tree)) if sum(lengths) == len(own))
        assert found == pytest.approx(max(map(next_tokens, others)))
        assert list(own) == sorted(own) and all(k == 0 or 3 * v + k - 1 in own for v, k in (divmod(x, 3) for x in own))


def test_the_best_plan_follows_the_cost_of_passes() -> None:
    wide = ProbePlan.best(TABLE, lambda rows: 1.0, 12)
    assert max(len(tree) + len(own) for tree, own in zip(wide.trees, wide.chains, strict=True)) == 12
    narrow = ProbePlan.best(TABLE, lambda rows: 1.0 if rows <= 5 else 3.0, 12)
    assert max(len(tree) + len(own) for tree, own in zip(narrow.trees, narrow.chains, strict=True)) <= 5
    assert narrow.tokens < wide.tokens and narrow.cost(float) < wide.cost(float)


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen2_5_vl", marks=pytest.mark.whole)])
def test_greedy_text_is_that_of_generate_with_a_plan(kind: str) -> None:
    inputs = prompt(kind, images=int(kind != "llama"), batch=4)
    expected = tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False)
    drafter = make("ppd").calibrated(torch.tensor(TABLE)).planned(lambda rows: 1.0, 10)
    truth = (
        tiny(kind).generate(**inputs, max_new_tokens=30, do_sample=False)[:, inputs["input_ids"].shape[1] :].tolist()
    )
    planted = Planted(drafter, truth=truth)
    out = mmspec.generate(tiny(kind), drafter=planted, max_new_tokens=24, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, expected) and out.stats.exact
    assert {0, 1, 2} <= {count for counts in out.stats.accepted for count in counts if count is not None}
    trees = {seen.draft.tree.nodes for seen in planted.rounds if seen.draft.tree.nodes > 1}
    assert trees <= {len(tree) for tree in drafter.plan.trees}


def test_accuracies_are_measured_and_saved_with_the_drafter(tmp_path) -> None:
    """The share of the target's best token at each rank, counted again from the predictions."""
    _, batch = answered("llama", batch=4)
    model, parts = tiny("llama"), take_apart(tiny("llama"))
    torch.manual_seed(0)
    drafter = new_drafter("ppd", model)
    objective = equal_recipe(drafter).objective
    assert isinstance(objective, PromptObjective)
    torch.manual_seed(1)
    table = rank_accuracies(objective, drafter, parts, [batch], ranks=101)
    torch.manual_seed(1)
    for depth in objective.predictions(drafter, parts, batch):
        made = depth.whole()
        rank = (made.student > made.student.gather(1, made.teacher.argmax(-1, True))).sum(-1)
        expected = torch.bincount(rank, minlength=101).double() / len(rank)
        torch.testing.assert_close(table[depth.depth], expected)
    drafter.calibrated(torch.tensor(TABLE)).save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=model)
    torch.testing.assert_close(torch.tensor(again.config.accuracies), torch.tensor(TABLE))
    assert drafter_from_text(f"ppd:budget=9@{tmp_path}", model).plan == again.planned(lambda rows: 1.0, 9).plan
    with pytest.raises(ValueError, match="budget: expected a drafter with measured accuracies"):
        drafter.planned(float)
    with pytest.raises(ValueError, match="budget: expected"):
        again.planned(float, 2)
