"""Token Recycling: the table, the trees and what is remembered between rounds and requests."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import likeliest_tree
from mmspec.core.round.tree import static_tree
from mmspec.vlm.drafters.token_recycling import HIT_RATES, RecyclingTable, TokenRecycling, small_template
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny


def run(kind: str, drafter: object, tokens: int = 30, **inputs):
    return mmspec.generate(
        tiny(kind), drafter=drafter, max_new_tokens=tokens, do_sample=False, return_dict=True, **inputs
    )


def test_templates_have_their_sizes_and_every_prefix_keeps_ranks_and_depths() -> None:
    for template, nodes, depth in ((small_template(), 24, 5), (likeliest_tree(80, 6, HIT_RATES), 80, 6)):
        whole = static_tree(template)
        assert (whole.nodes, whole.max_depth) == (nodes, depth) and whole.max_rank < 8
        for count in range(1, nodes):
            part = static_tree(template[:count])
            assert torch.equal(part.sibling_rank, whole.sibling_rank[:, :count])
            assert torch.equal(part.depth, whole.depth[:, :count])


def test_the_likeliest_tree_takes_nodes_by_falling_chance() -> None:
    assert likeliest_tree(5, 3, (0.5, 0.3)) == (0, 0, 0, 1, 1)  # 0.5, 0.3, 0.25, then 0.15 under node 1
    with pytest.raises(ValueError, match="falling"):
        likeliest_tree(5, 3, (0.3, 0.5))
    with pytest.raises(ValueError, match="at most 3"):
        likeliest_tree(4, 1, (0.5, 0.3))


def test_a_stored_row_comes_back_and_the_rest_stays_unknown() -> None:
    table = RecyclingTable(2).reserve(2, 10, torch.device("cpu"))
    token = torch.tensor([[3, 4], [3, 5]])
    best = torch.arange(8).view(2, 2, 2)
    table.store(token, best, torch.ones(2, 2, dtype=torch.bool), torch.arange(4).view(2, 2))
    found = table.look(torch.tensor([[3, 4, 5], [3, 4, 5]]), torch.tensor([0, 1, 1]))
    assert found.tolist() == [[0, 3, -1], [4, -1, 7]]


@pytest.mark.parametrize("shared", (False, True))
def test_of_a_token_that_occurs_twice_the_higher_priority_is_kept(shared: bool) -> None:
    table = RecyclingTable(1).reserve(1 if shared else 2, 10, torch.device("cpu"))
    token = torch.tensor([[3, 3, 3], [3, 3, 6]])
    usable = torch.tensor([[True, True, False], [True, True, True]])
    table.store(token, torch.tensor([[[1], [2], [3]], [[4], [5], [6]]]), usable, torch.tensor([[7, 1, 9], [2, 3, 4]]))
    first = table.look(torch.tensor([[3], [3]])[: 1 if shared else 2], torch.tensor([0]))
    assert first.tolist() == ([[1]] if shared else [[1], [5]])


def test_every_scored_node_refreshes_its_row_also_when_rejected() -> None:
    inputs = prompt("llama")
    drafter = Watched(TokenRecycling())
    decoding = mmspec.vlm.start(tiny("llama"), drafter=drafter, max_new_tokens=60, do_sample=False, **inputs)
    while decoding.step() and not (drafter.rounds and drafter.rounds[-1].draft.tree.nodes > 4):
        pass
    draft, evidence = drafter.rounds[-1].draft, drafter.rounds[-1].evidence
    best = evidence.scores[0].topk(8, -1).indices
    kept = drafter.state.table.rows[0, draft.value[0]].long()
    tokens = draft.value[0].tolist()
    for node in draft.valid[0].nonzero()[:, 0].tolist():
        same = [i for i, t in enumerate(tokens) if t == tokens[node] and draft.valid[0, i]]
        assert any(torch.equal(kept[node], best[i]) for i in same)
    assert sum(decoding.stats.accepted[-1]) < draft.valid[0].sum() - 1  # some of them had been rejected


@pytest.mark.parametrize("batch", (1, 4))
def test_siblings_differ_and_placeholders_are_neither_stored_nor_proposed(batch: int) -> None:
    inputs = prompt("qwen2_5_vl", images=1, where="echo", batch=batch)
    drafter = Watched(TokenRecycling())
    run("qwen2_5_vl", drafter, 40, **inputs)
    barred = set(drafter.state.barred.tolist())
    rows = drafter.state.table.rows
    assert barred and not barred & set(rows.unique().tolist()) and (rows[:, list(barred)] == -1).all()
    for r in drafter.rounds:
        for row in range(batch):
            assert not barred & set(r.drafted(row))
            parent = r.draft.tree.parent[0]
            pairs = [
                (int(parent[i]), int(r.draft.value[row, i]))
                for i in range(1, r.draft.tree.nodes)
                if r.draft.valid[row, i]
            ]
            assert len(pairs) == len(set(pairs))


def test_each_request_starts_empty_unless_a_table_is_shared() -> None:
    inputs = prompt("llama")
    alone = TokenRecycling()
    first, second = run("llama", alone, **inputs), run("llama", alone, **inputs)
    assert first.stats.accepted == second.stats.accepted
    sharing = TokenRecycling(table=RecyclingTable())
    third, fourth = run("llama", sharing, **inputs), run("llama", sharing, **inputs)
    assert torch.equal(third.sequences, fourth.sequences) and torch.equal(first.sequences, third.sequences)
    assert fourth.stats.target_passes < third.stats.target_passes


def test_a_batch_can_share_one_table() -> None:
    inputs = prompt("llama", batch=4)
    table = RecyclingTable()
    out = run("llama", TokenRecycling(table=table), **inputs)
    assert torch.equal(out.sequences, tiny("llama").generate(**inputs, max_new_tokens=30, do_sample=False))
    assert table.rows.shape == (1, 102, 8)


def test_the_first_rounds_cost_nothing_extra() -> None:
    drafter = Watched(TokenRecycling())
    run("llama", drafter, 8, **prompt("llama"))
    assert drafter.rounds[0].draft.tree.nodes == 1


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="template"):
        TokenRecycling(width=1)
    with pytest.raises(ValueError, match="table: expected width 8"):
        TokenRecycling(table=RecyclingTable(4))
    with pytest.raises(ValueError, match="vocabulary 50"):
        RecyclingTable().reserve(1, 101, torch.device("cpu")).reserve(1, 50, torch.device("cpu"))
