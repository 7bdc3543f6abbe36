"""Prompt lookup and a trained drafter in one tree change nothing but the speed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import transformers as hf
from scipy import stats
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.drafters import Merged, PromptLookup, SuffixIndex
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.drafters.merged import retrieval_of
from tests.vlm.drafters.test_lossless import true_law
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.test_sampled_law import narrow
from tests.vlm.tiny import PAD, prompt, tiny

TREE = StaticTree((0, 0, 0, 1, 1))
SHAPES = {"chain": Chain(FixedLength(3)), "confident": Chain(ConfidenceStop(0.02, 4)), "tree": TREE}
REPEATED = torch.tensor([[5, 6, 7, 8, 5, 6, 9, 5, 6, 7]])


def merged(name: str = "eagle3", shape: Shape = TREE, **settings: object) -> Merged:
    return Merged(make(name).with_shape(shape), PromptLookup(longest=4), **settings)


def ragged() -> dict[str, Tensor]:
    """Four rows that repeat themselves, but for the last, with padding on the left."""
    rows = [[5, 6, 7, 8, 5, 6], [11, 12, 13, 14, 11, 12, 13, 14, 11, 12, 13], [20, 21, 20], [30, 31, 32, 33]]
    ids = torch.tensor([[PAD] * (11 - len(row)) + row for row in rows])
    return dict(input_ids=ids, attention_mask=(ids != PAD).long())


def with_copies(watched: Watched) -> list[bool]:
    """Per round, whether it held copied nodes beside or without drawn ones."""
    return [seen.draft.law.copies is not None for seen in watched.rounds]


@pytest.mark.parametrize(
    ("name", "shape", "alone_from"),
    (("eagle3", "chain", None), ("eagle", "dynamic", 2), ("dspark", "tree", 2), ("medusa", "dynamic", None)),
)
def test_greedy_words_are_those_of_transformers(name: str, shape: str, alone_from: int | None) -> None:
    drafter = merged(name, DynamicTree(6, 3, 2) if shape == "dynamic" else SHAPES[shape], alone_from=alone_from)
    for kind, inputs in (("llama", ragged()), ("llava", prompt("llava", images=1, where="echo", batch=4))):
        watched, options = Watched(drafter), dict(inputs, max_new_tokens=20, do_sample=False)
        out = mmspec.generate(tiny(kind), drafter=watched, **options)
        assert torch.equal(out, tiny(kind).generate(**options))
        assert len({seen.draft.tree.nodes for seen in watched.rounds}) > 1  # rounds with and without copies


SAMPLED = (
    ("chain", "exact"),
    ("tree", "recursive"),
    pytest.param("tree", "exact", marks=pytest.mark.whole),
    pytest.param("confident", "recursive", marks=pytest.mark.whole),
    pytest.param("tree", "match", marks=pytest.mark.whole),
)


def leaning_eagle() -> Eagle:
    """A drafter for `narrow` whose drafts are accepted now and then."""
    drafter = Eagle(EagleConfig(hidden_size=16, intermediate_size=16, num_attention_heads=2, vocab_size=8))
    with torch.no_grad():
        drafter.fc.weight[:, 16:].normal_(0, 0.1).add_(torch.eye(16))
    return drafter


def assert_targets_law(drafter: object, rule: str = "exact", rows: int = 1500) -> Watched:
    """Three sampled tokens of `narrow` have the target's joint distribution; returns the watched drafter."""
    model, ids, watched = narrow(), torch.tensor([[1, 5, 2, 3, 4, 6, 7, 1, 5, 2]]), Watched(drafter)
    options = dict(input_ids=ids.expand(rows, -1), max_new_tokens=5, do_sample=True, top_k=3)
    out = mmspec.generate(model, drafter=watched, rule=rule, seed=9, **options)
    law = true_law(model, ids, 3, hf.TopKLogitsWarper(3))
    seen = Counter(map(tuple, out[:, ids.shape[1] :][:, :3].tolist()))
    assert set(seen) <= set(law)
    expected = torch.tensor([law[words] * rows for words in law]).double()
    found = torch.tensor([seen[words] for words in law]).double()
    rare = expected < 8  # these share one cell
    expected, found = (torch.cat([x[~rare], x[rare].sum()[None]]) for x in (expected, found))
    assert len(expected) > 6 and stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-4
    return watched


@pytest.mark.parametrize(("shape", "rule"), SAMPLED)
def test_sampled_words_have_the_targets_distribution(shape: str, rule: str) -> None:
    drafter = Merged(leaning_eagle().with_shape(SHAPES[shape]), PromptLookup(longest=3), alone_from=3)
    assert any(with_copies(assert_targets_law(drafter, rule)))


ROWS = (
    ("chain", 3),
    ("tree", None),
    pytest.param("confident", 3, marks=pytest.mark.whole),
    pytest.param("tree", 3, marks=pytest.mark.whole),
)


def assert_rows_alone_and_together(drafter: object) -> Watched:
    """A row of a ragged batch has the values and the accept lengths of the row alone; returns the watched drafter."""
    inputs, model = ragged(), tiny("llama")
    options = dict(max_new_tokens=20, do_sample=True, top_k=3, return_dict=True)
    watched = Watched(drafter)
    together = mmspec.generate(model, drafter=watched, seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=drafter, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -20:], together.sequences[row, -20:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in alone.stats.accepted]
    return watched


@pytest.mark.parametrize(("shape", "alone_from"), ROWS)
def test_a_row_is_the_same_alone_and_in_a_batch(shape: str, alone_from: int | None) -> None:
    assert any(with_copies(assert_rows_alone_and_together(merged("eagle", SHAPES[shape], alone_from=alone_from))))


def test_interleaved_requests_match_requests_alone() -> None:
    model, drafter = tiny("llama"), merged("eagle3", alone_from=3)
    options = dict(max_new_tokens=16, do_sample=True, top_k=3, drafter=drafter)
    prompts = [REPEATED, REPEATED[:, 3:]]
    alone = [mmspec.generate(model, input_ids=ids, seed=seed, **options) for seed, ids in enumerate(prompts)]
    runs = [mmspec.vlm.start(model, input_ids=ids, seed=seed, **options) for seed, ids in enumerate(prompts)]
    while any([run.step() for run in runs]):
        pass
    for run, ids, whole in zip(runs, prompts, alone, strict=True):
        assert run.target.tokens[0] == whole[0, ids.shape[1] :].tolist()


def test_long_matches_spare_the_drafters_steps() -> None:
    ids = torch.tensor([[*range(5, 17), 40, *range(5, 10)]])
    for alone_from, passes in ((4, 0), (6, 0), (7, 3), (None, 3)):
        run = mmspec.vlm.start(
            tiny("llama"),
            drafter=merged("eagle", SHAPES["chain"], alone_from=alone_from),
            input_ids=ids,
            max_new_tokens=9,
        )
        run.step()
        run.target.tokens[0], run.target.pending[0] = [10], 10  # pretend the target had gone on like the prompt
        before = run.state.passes
        draft = run.state.propose(run.target, run.keys)
        assert [11, 12, 13, 14] == draft.value[0, draft.tree.path[0][draft.tree.depth[0].argmax()]][1:].tolist()
        # three levels: one by the pass over what is new, two by passes of their own
        assert run.state.passes - before == passes and run.state.skipped == (passes == 0)


def test_a_round_without_a_match_is_the_drafters_own() -> None:
    options = dict(input_ids=torch.tensor([[3, 4, 5, 6]]), max_new_tokens=4, do_sample=False)
    runs = [
        mmspec.vlm.start(tiny("llama"), drafter=one, **options)
        for one in (merged("eagle"), make("eagle").with_shape(TREE))
    ]
    drafts = []
    for run in runs:
        run.step()
        run.target.tokens[0], run.target.pending[0] = [90], 90
        drafts.append(run.state.propose(run.target, run.keys))
    assert drafts[0].tree is drafts[1].tree and torch.equal(drafts[0].value, drafts[1].value)


def test_length_controllers_and_conversations_take_it() -> None:
    model = tiny("llama")
    options = dict(ragged(), max_new_tokens=20, do_sample=False)
    control = Goodput(merged("eagle3", SHAPES["chain"]))
    for _ in range(2):
        assert torch.equal(mmspec.generate(model, drafter=control, **options), model.generate(**options))
    state = mmspec.vlm.start(model, drafter=merged(alone_from=2), **options)
    state.step()
    draft = state.state.propose(state.target, state.keys, 1)
    assert draft.tree.max_depth == 1


def test_answers_of_earlier_requests_are_copied_and_change_only_the_speed() -> None:
    model, eagle = tiny("llama"), make("eagle3").with_shape(SHAPES["chain"])
    options = dict(input_ids=REPEATED, max_new_tokens=24, do_sample=False)
    shared, text = Merged(eagle, retrieval_of("suffix", SuffixIndex())), model.generate(**options)
    runs = [mmspec.generate(model, drafter=shared, return_dict=True, **options) for _ in range(2)]
    assert all(torch.equal(run.sequences, text) for run in runs)
    first, second = (run.stats.target_passes for run in runs)
    alone = mmspec.generate(model, drafter=Merged(eagle, retrieval_of("suffix")), return_dict=True, **options)
    assert second < first == alone.stats.target_passes


@pytest.mark.parametrize("alone_from", (None, 3))
def test_copies_of_a_shared_index_keep_the_targets_distribution(alone_from: int | None) -> None:
    index = SuffixIndex()
    index.extend([1, 5, 2, 3, 3, 4, -1, 5, 2, 6, 6, 1, -1])
    drafter = Merged(leaning_eagle().with_shape(SHAPES["chain"]), retrieval_of("suffix", index), alone_from=alone_from)
    assert any(with_copies(assert_targets_law(drafter)))


def test_settings_are_checked() -> None:
    eagle = make("eagle")
    with pytest.raises(ValueError, match="drafter: expected"):
        Merged(PromptLookup())
    with pytest.raises(ValueError, match="retrieval: expected"):
        Merged(eagle, eagle)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="alone_from: expected"):
            Merged(eagle, alone_from=wrong)
