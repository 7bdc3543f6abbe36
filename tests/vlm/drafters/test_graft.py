"""A drafter and a recycling table that share a fixed number of nodes change nothing but the speed."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.draft import Draft
from mmspec.vlm.drafters import PromptLookup, RecyclingTable
from mmspec.vlm.drafters.graft import Graft
from tests.vlm.drafters.test_merged import (
    SHAPES,
    TREE,
    assert_rows_alone_and_together,
    assert_targets_law,
    leaning_eagle,
    ragged,
    with_copies,
)
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny

IDS = torch.tensor([[5, 6, 7, 8, 5, 6]])


def graft(shape: object = DynamicTree(12, 7, 3), name: str = "eagle", **settings: object) -> Graft:
    return Graft(make(name).with_shape(shape, TREE), **{"nodes": 12, **settings})


def sizes(watched: Watched) -> list[int]:
    """The valid nodes of every draft of the first row, without the root."""
    return [
        int(seen.draft.tree.nodes if seen.draft.valid is None else seen.draft.valid[0].sum()) - 1
        for seen in watched.rounds
    ]


def rounds_of(drafter: object, **options: object) -> Watched:
    watched = Watched(drafter)
    mmspec.generate(
        tiny("llama"), drafter=watched, **{"input_ids": IDS, "max_new_tokens": 40, "do_sample": False} | options
    )
    return watched


@pytest.mark.parametrize(("name", "least"), (("eagle", 0.9), ("eagle3", 0.05)))
def test_greedy_words_are_those_of_transformers(name: str, least: float) -> None:
    drafter = graft(name=name, least=least)
    for kind, inputs in (("llama", ragged()), ("llava", prompt("llava", images=1, where="echo", batch=4))):
        options = dict(inputs, max_new_tokens=20, do_sample=False)
        assert torch.equal(mmspec.generate(tiny(kind), drafter=drafter, **options), tiny(kind).generate(**options))


@pytest.mark.parametrize(
    ("shape", "rule"), (("tree", "exact"), pytest.param("chain", "recursive", marks=pytest.mark.whole))
)
def test_sampled_words_have_the_targets_distribution(shape: str, rule: str) -> None:
    watched = assert_targets_law(Graft(leaning_eagle().with_shape(SHAPES[shape]), nodes=6), rule)
    assert any(with_copies(watched))
    assert any(seen.draft.law.copies.branching for seen in watched.rounds if seen.draft.law.copies is not None)


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    assert any(with_copies(assert_rows_alone_and_together(graft(nodes=8))))


def test_the_table_fills_exactly_the_nodes_that_the_drafter_leaves() -> None:
    table = RecyclingTable(8)
    rounds_of(graft(least=1.0, table=table), max_new_tokens=60)
    watched = rounds_of(graft(least=1.0, table=table), max_new_tokens=60)
    inside = sizes(watched)[:-7]  # drafts near the end have fewer levels
    assert inside and max(inside) == 12 and sum(size == 12 for size in inside) > len(inside) / 2


def test_without_a_chance_to_stop_it_is_the_drafter() -> None:
    shape = DynamicTree(12, 7, 3)
    own, other = rounds_of(make("eagle").with_shape(shape)), rounds_of(graft(shape, least=0))
    known = {tuple(seen.tokens[0]): seen.draft for seen in own.rounds}
    shared = [(known[key], seen.draft) for seen in other.rounds if (key := tuple(seen.tokens[0])) in known]
    assert len(shared) > 2  # a copy in the place of an invalid node may be accepted, and rounds then differ
    for one, two in shared:
        nodes = one.tree.nodes
        valid = torch.ones(1, nodes, dtype=torch.bool) if one.valid is None else one.valid
        assert torch.equal(one.value[valid], two.value[:, :nodes][valid])
        assert torch.equal(one.tree.parent.expand(1, -1)[valid], two.tree.parent[:, :nodes][valid])


def stopped(least: float, keep: int = 4) -> tuple[Draft, int]:
    """The first draft of a tree that may stop after two levels, and the drafter's passes of that round."""
    shape = DynamicTree(12, 5, 3, stop=((3, least, "best", keep),))
    run = mmspec.vlm.start(tiny("llama"), drafter=make("eagle").with_shape(shape), input_ids=IDS, max_new_tokens=20)
    run.step()
    before = run.state.passes
    return run.state.propose(run.target, run.keys), run.state.passes - before


def test_a_checkpoint_ends_the_tree_and_spares_the_passes_below() -> None:
    (grown, passes), (short, fewer) = stopped(0.0), stopped(1.1)
    assert grown.tree.nodes == 13 and short.tree.nodes == 5 and passes - fewer == 2
    assert int(short.tree.depth.max()) <= 3


def test_a_chain_is_filled_too() -> None:
    drafter = Graft(make("eagle").with_shape(Chain(FixedLength(3))), nodes=8)
    assert max(sizes(rounds_of(drafter))) == 8


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="drafter: expected"):
        Graft(PromptLookup())
    with pytest.raises(ValueError, match="least: expected"):
        graft(least=1.5)
    with pytest.raises(ValueError, match="nodes: expected"):
        graft(nodes=0)
