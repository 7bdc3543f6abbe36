"""Costs of passes by their nodes: measured on the way, not monotone, and the widths that passes are padded to."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from mmspec.core.length.pass_costs import PassCosts, pad_nodes, pass_costs_of
from mmspec.core.round.tree import chain, static_tree
from tests.core.length.replayed import FP32, Machine


def measured(widths: tuple[int, ...], rounds: int = 6) -> PassCosts:
    """Passes of these widths in turns, at the costs of fp32."""
    costs, machine = PassCosts(), Machine(FP32)
    for _ in range(rounds):
        for width in widths:
            costs.add(width, machine.cost(width))
    return costs


def test_nothing_is_known_before_plain_passes() -> None:
    costs = PassCosts()
    assert not costs.ready and costs.curve() == {} and costs.padded(3) == 3
    costs.add(1, 1.0)
    costs.add(1, 1.0)
    assert costs.ready and costs.cost(1) == 1.0 and 1.0 < costs.cost(2) < costs.cost(9) < 2.0


def test_the_curve_is_as_measured_and_costs_lean_on_little() -> None:
    costs = measured((1, 2, 3, 4, 8, 16))
    assert costs.curve() == pytest.approx({width: FP32[width] for width in (1, 2, 3, 4, 8, 16)}, rel=1e-6)
    assert costs.cost(3) > costs.cost(2) > costs.cost(4) > 1
    assert costs.cost(3) < FP32[3] and measured((1, 3), 60).cost(3) == pytest.approx(FP32[3], rel=0.06)


def test_a_busy_machine_changes_no_cost() -> None:
    costs, machine = PassCosts(), Machine(FP32)
    for turn in range(40):
        for width in (1, 1, 1, 4, 4, 8):
            costs.add(width, machine.cost(width) * (1 if turn < 20 else 3))
    assert costs.curve() == pytest.approx({1: 1.0, 4: 1.43, 8: 1.69}, rel=0.12)


def test_passes_are_padded_where_a_wider_pass_is_cheaper() -> None:
    costs = measured((1, 2, 3, 4, 5, 8))
    assert {nodes: costs.padded(nodes) for nodes in (1, 2, 3, 4, 5, 8)} == {1: 1, 2: 4, 3: 4, 4: 4, 5: 5, 8: 8}
    assert costs.expected(3) == costs.cost(4) < costs.cost(3)
    # the narrow pass is measured again now and then
    assert 0 < [costs.padded(3) for _ in range(100)].count(3) < 5


def test_an_unknown_wider_pass_is_tried_until_it_is_known() -> None:
    costs, machine, seen = measured((1, 3)), Machine(FP32), []
    for _ in range(40):
        seen.append(costs.padded(3))
        costs.add(seen[-1], machine.cost(seen[-1]))
    assert seen[:3] == [3, 3, 3] and seen.count(3) < 20 and seen[-1] == 4


def test_widths_are_fixed_where_requests_do_not_adapt() -> None:
    costs = measured((1, 2, 3, 4, 8))
    assert costs.padded(3, adapts=False) == 3
    costs.fix_widths()
    assert [costs.padded(nodes, adapts=False) for nodes in (1, 2, 3, 4, 5, 50)] == [1, 4, 4, 4, 5, 50]
    for _ in range(50):  # what is measured later changes nothing
        costs.add(4, 9.0)
        costs.add(1, 1.0)
    assert costs.padded(3, adapts=False) == 4


@pytest.mark.parametrize("tree", (chain(2), static_tree((0, 0, 0, 1, 1, 3))), ids=("chain", "tree"))
def test_new_nodes_see_themselves_and_nobody_sees_them(tree) -> None:
    nodes = tree.nodes
    value = torch.arange(2 * nodes).view(2, nodes)
    wider, depth, ancestor = pad_nodes(value, tree.depth.expand(2, -1), tree.ancestor, nodes + 3)
    assert torch.equal(wider[:, :nodes], value) and torch.equal(wider[:, nodes:], value[:, :1].expand(-1, 3))
    assert torch.equal(depth[:, :nodes], tree.depth.expand(2, -1)) and not depth[:, nodes:].any()
    assert torch.equal(ancestor[:, :nodes, :nodes], tree.ancestor) and not ancestor[:, :nodes, nodes:].any()
    assert torch.equal(ancestor[:, nodes:, nodes:], torch.eye(3, dtype=torch.bool)[None])
    assert not ancestor[:, nodes:, :nodes].any()


def test_costs_last_as_long_as_the_model() -> None:
    model = nn.Linear(2, 2)
    costs = pass_costs_of(model, (1, "cpu"))
    assert pass_costs_of(model, (1, "cpu")) is costs is not pass_costs_of(model, (2, "cpu"))
    known = weakref.ref(costs)
    del model, costs
    gc.collect()
    assert known() is None
