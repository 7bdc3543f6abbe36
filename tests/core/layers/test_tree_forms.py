"""Convolutions and recurrences over a tree are those over each node's own path, states included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.layers.tree_recurrence import (
    CommittedPaths,
    RecurrenceUpdate,
    chain_conv,
    conv_columns,
    tree_conv,
    tree_recurrence,
    window_behind,
)
from mmspec.core.round.tree import Tree, chain
from tests.vlm.drafts import random_tree

ROWS, HEADS, NODES, KEY, VALUE = 3, 2, 11, 5, 4
KINDS = ("gated delta", "channelwise delta", "scan")
CLOSE = dict(rtol=1e-5, atol=1e-5)


def tree_of(seed: int) -> Tree:
    return random_tree(ROWS, NODES, torch.Generator().manual_seed(seed))


def paths_to(tree: Tree, node: int) -> list[list[int]]:
    found = []
    for row in range(ROWS):
        path = [node]
        while path[0]:
            path.insert(0, int(tree.parent[row, path[0]]))
        found.append(path)
    return found


def inputs(kind: str, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def drawn(*size: int) -> Tensor:
        return torch.randn(ROWS, HEADS, *size, generator=rng)

    key = torch.nn.functional.normalize(drawn(NODES, KEY), dim=-1)
    made = dict(
        query=drawn(NODES, KEY),
        key=key,
        value=drawn(NODES, VALUE),
        start=drawn(KEY, VALUE),
        log_decay=-drawn(NODES, KEY if kind == "channelwise delta" else 1).abs(),
    )
    return made | {"rate": None if kind == "scan" else drawn(NODES, 1).sigmoid()}


def stepped(given: dict[str, Tensor], row: int, path: list[int]) -> tuple[Tensor, Tensor]:
    """The last output and the state behind a path, one node after the other."""
    state = given["start"][row].double()
    for node in path:
        query, key, value, decay = (given[n][row, :, node].double() for n in ("query", "key", "value", "log_decay"))
        state = state * decay.exp()[..., None]
        if given["rate"] is not None:
            value = given["rate"][row, :, node].double() * (value - torch.einsum("hk,hkv->hv", key, state))
        state = state + key[..., None] * value[..., None, :]
        out = torch.einsum("hk,hkv->hv", query, state)
    return out.float(), state.float()


def gap(given: dict[str, Tensor], tree: Tree, out: Tensor, brought: RecurrenceUpdate) -> float:
    """How far outputs and states of any node are from those of its path."""
    most = 0.0
    for node in range(NODES):
        paths = paths_to(tree, node)
        states = brought.behind(CommittedPaths(paths))
        for row, path in enumerate(paths):
            wanted, state = stepped(given, row, path)
            most = max(most, float((out[row, :, node] - wanted).abs().max()), float((states[row] - state).abs().max()))
    return most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_node_of_a_random_tree_equals_its_own_path(kind: str, seed: int) -> None:
    given, tree = inputs(kind, seed), tree_of(seed)
    assert gap(given, tree, *tree_recurrence(**given, ancestor=tree.ancestor)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", (1, 4))
def test_chains_and_roots_alone_equal_their_steps(kind: str, nodes: int) -> None:
    """They have ways of their own, and so have states behind nodes that all rows keep."""
    given = {
        name: x if x is None or name == "start" else x[:, :, :nodes].contiguous() for name, x in inputs(kind, 7).items()
    }
    tree = chain(nodes - 1)
    assert tree.straight
    out, brought = tree_recurrence(**given, ancestor=tree.ancestor)
    for count in range(nodes + 1):
        kept = list(range(count))
        states = brought.behind(CommittedPaths([kept] * ROWS))
        for row in range(ROWS):
            wanted, state = stepped(given, row, kept) if kept else (None, given["start"][row])
            torch.testing.assert_close(states[row], state, **CLOSE)
            if kept:
                torch.testing.assert_close(out[row, :, count - 1], wanted, **CLOSE)
    apart = brought.behind(CommittedPaths([[], *[list(range(nodes))] * (ROWS - 1)]))
    torch.testing.assert_close(apart[1:], states[1:], **CLOSE)
    assert torch.equal(apart[0], given["start"][0])


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_recurrences_are_found_out(kind: str) -> None:
    given, tree = inputs(kind, 0), tree_of(0)
    out, brought = tree_recurrence(**given, ancestor=tree.ancestor)
    chained = torch.ones(NODES, NODES, dtype=torch.bool).tril()[None]
    assert gap(given, tree, *tree_recurrence(**given, ancestor=chained)) > 1e-2, (
        "nodes that decay and see by their order"
    )
    assert gap(given, tree, out, replace(brought, start=torch.zeros_like(brought.start))) > 1e-2, "a forgotten state"
    assert gap(given, tree, out, replace(brought, decay=given["log_decay"])) > 1e-2, (
        "decay of a node instead of its path"
    )
    if kind != "scan":
        assert gap(given, tree, out, replace(brought, update=given["rate"] * given["value"])) > 1e-2, (
            "values as they came"
        )


def test_rows_that_stopped_keep_their_state_and_poison_beside_a_path_is_not_read() -> None:
    given, tree = inputs("gated delta", 5), tree_of(5)
    _, brought = tree_recurrence(**given, ancestor=tree.ancestor)
    paths = [[], paths_to(tree, 4)[1], paths_to(tree, 7)[2]]
    for row, path in enumerate(paths):
        beside = [node for node in range(NODES) if node not in path]
        for one in (brought.key, brought.update, brought.decay):
            one[row][:, beside] = torch.nan
    states = brought.behind(CommittedPaths(paths))
    assert torch.equal(states[0], given["start"][0])
    for row in (1, 2):
        torch.testing.assert_close(states[row], stepped(given, row, paths[row])[1], **CLOSE)


@pytest.mark.parametrize("taps", (2, 4))
def test_a_tree_convolution_reads_each_node_s_own_ancestors(taps: int) -> None:
    rng = torch.Generator().manual_seed(taps)
    channels, tree = 6, tree_of(3)
    for held in (taps - 1, taps):  # transformers keeps one column more than it needs
        full = torch.randn(ROWS, channels, held + NODES, generator=rng)
        weight, bias = torch.randn(channels, taps, generator=rng), torch.randn(channels, generator=rng)
        out = tree_conv(full, weight, bias, conv_columns(tree.path, tree.ancestor, taps, held))
        order = tree_conv(full, weight, bias, torch.arange(NODES)[None, :, None] + torch.arange(taps) + held - taps + 1)
        wrong = 0.0
        for node in range(NODES):
            paths = paths_to(tree, node)
            window = window_behind(full, held, CommittedPaths(paths))
            for row, path in enumerate(paths):
                own = torch.cat([full[row, :, :held], full[row][:, [held + n for n in path]]], 1)
                torch.testing.assert_close(out[row, :, node], (own[:, -taps:] * weight).sum(1) + bias, **CLOSE)
                assert torch.equal(window[row], own[:, -held:])
                wrong = max(wrong, float((order[row, :, node] - out[row, :, node]).abs().max()))
        assert wrong > 1e-2, "a convolution over nodes in their order"
    assert torch.equal(window_behind(full, held, CommittedPaths([[], [0], []]))[0], full[0, :, :held])


@pytest.mark.parametrize("held", (3, 4))
@pytest.mark.parametrize("nodes", (1, 2, 6))
def test_a_chain_s_convolution_is_the_tree_s(nodes: int, held: int) -> None:
    rng = torch.Generator().manual_seed(nodes)
    taps, tree = 4, chain(nodes - 1)
    full, weight = torch.randn(ROWS, 5, held + nodes, generator=rng), torch.randn(5, taps, generator=rng)
    bias = torch.randn(5, generator=rng)
    wanted = tree_conv(full, weight, bias, conv_columns(tree.path, tree.ancestor, taps, held))
    torch.testing.assert_close(chain_conv(full, weight, bias, nodes), wanted, **CLOSE)
    for count in range(nodes + 1):
        kept = list(range(count))
        # of three rows one stops, so that the rest go the other way
        one, other = (window_behind(full, held, CommittedPaths(rows)) for rows in ([kept] * ROWS, [[], kept, kept]))
        assert torch.equal(one[1:], other[1:]) and torch.equal(one[0], full[0, :, count : count + held])


def test_a_tree_is_straight_where_all_its_rows_are_chains() -> None:
    assert chain(0).straight and chain(3).straight and not tree_of(0).straight
    assert CommittedPaths([[0, 1], [0, 1]]).leading == 2 and CommittedPaths([[]]).leading == 0
    assert CommittedPaths([[0, 2]]).leading is None and CommittedPaths([[0, 1], [0]]).leading is None
