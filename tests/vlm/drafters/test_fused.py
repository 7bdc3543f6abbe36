"""Several copied continuations beside a trained drafter's tree change nothing but the speed."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.merge import with_copied_paths
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.vlm.drafters import PromptLookup
from mmspec.vlm.drafters.prompt_lookup import NgramIndex
from mmspec.vlm.drafters.rasd import Fused
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

SEVERAL = torch.tensor([[5, 6, 7, 8, 5, 6, 9, 10, 5, 6, 11, 12, 5, 6]])


def fused(name: str = "eagle3", shape: object = TREE, **settings: object) -> Fused:
    return Fused(make(name).with_shape(shape), PromptLookup(longest=4), **{"keep": 90, **settings})


def draft_of(drafter: Fused, ids: torch.Tensor = SEVERAL, **options: object) -> object:
    """The second draft of a request whose text goes on with the last id of the prompt, and its state."""
    run = mmspec.vlm.start(tiny("llama"), drafter=drafter, input_ids=ids[:, :-1], max_new_tokens=9, **options)
    run.step()
    run.target.tokens[0], run.target.pending[0] = [int(ids[0, -1])], int(ids[0, -1])
    return run.state.propose(run.target, run.keys), run


def first_tokens(draft: object) -> list[int]:
    """The copied and drawn tokens after the root."""
    parent = draft.tree.parent.expand(draft.batch, -1)[0]
    valid = torch.ones_like(parent, dtype=torch.bool) if draft.valid is None else draft.valid[0]
    return [int(draft.value[0, n]) for n in range(1, draft.tree.nodes) if parent[n] == 0 and valid[n]]


@pytest.mark.parametrize(("name", "shape"), (("eagle3", "tree"), ("eagle", "dynamic")))
def test_greedy_words_are_those_of_transformers(name: str, shape: str) -> None:
    drafter = fused(name, DynamicTree(6, 3, 2) if shape == "dynamic" else SHAPES[shape])
    for kind, inputs in (("llama", ragged()), ("llava", prompt("llava", images=1, where="echo", batch=4))):
        watched, options = Watched(drafter), dict(inputs, max_new_tokens=20, do_sample=False)
        assert torch.equal(mmspec.generate(tiny(kind), drafter=watched, **options), tiny(kind).generate(**options))
        assert len({seen.draft.tree.nodes for seen in watched.rounds}) > 1


@pytest.mark.parametrize(
    ("shape", "rule"), (("tree", "exact"), pytest.param("chain", "recursive", marks=pytest.mark.whole))
)
def test_sampled_words_have_the_targets_distribution(shape: str, rule: str) -> None:
    drafter = Fused(leaning_eagle().with_shape(SHAPES[shape]), PromptLookup(longest=3), alone_from=None, keep=3)
    watched = assert_targets_law(drafter, rule)
    assert any(with_copies(watched))
    assert any(seen.draft.law.copies.branching for seen in watched.rounds if seen.draft.law.copies is not None)


@pytest.mark.parametrize("shape", ("tree", pytest.param("chain", marks=pytest.mark.whole)))
def test_a_row_is_the_same_alone_and_in_a_batch(shape: str) -> None:
    assert any(with_copies(assert_rows_alone_and_together(fused("eagle", SHAPES[shape], alone_from=3))))


def test_all_continuations_of_the_longest_match_are_found_latest_first() -> None:
    index = NgramIndex(PromptLookup(longest=4), frozenset(), 90)
    index.extend(SEVERAL[0].tolist())
    assert index.continuations(2, 8) == [[11, 12], [9, 10], [7, 8]]
    assert index.continuations(2, 2) == [[11, 12], [9, 10]] and index.continuation(2) == [11, 12]
    index.extend([50])
    assert index.continuations(2, 8) == []


def test_branches_form_a_trie_behind_the_drafters_nodes() -> None:
    draft, run = draft_of(fused(alone_from=None))
    assert {7, 9, 11} <= set(first_tokens(draft))
    drawn = run.state.inner.propose(run.target, run.keys)
    assert torch.equal(draft.value[:, : drawn.tree.nodes], drawn.value)
    assert len(first_tokens(draft)) == len(set(first_tokens(draft)))


def test_the_drafters_first_step_prunes_branches() -> None:
    kept = [set(first_tokens(draft_of(fused(alone_from=None, keep=keep))[0])) & {7, 9, 11} for keep in (1, 90)]
    assert kept[1] == {7, 9, 11} and kept[0] < kept[1]


def test_a_continuation_that_the_drafter_drew_adds_no_node() -> None:
    drafter = fused("eagle", SHAPES["chain"], alone_from=None)
    _, run = draft_of(drafter)
    own = run.state.inner.propose(run.target, run.keys).value[0, 1:].tolist()
    again = run.state.joining([[own]], run.state.inner.propose(run.target, run.keys), [False])
    inner = run.state.inner.propose(run.target, run.keys)
    assert again == [[own]] and with_copied_paths(inner, again, [False]) is inner


def test_the_number_of_nodes_is_capped() -> None:
    free = draft_of(fused(alone_from=None))[0].tree.nodes
    assert draft_of(fused(alone_from=None, most=free - 2))[0].tree.nodes == free - 2


def test_settings_are_checked() -> None:
    for wrong in (dict(branches=0), dict(keep=0), dict(most=0)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            fused(**wrong)
