"""EAGLE: every shape keeps the target's words, trees are what they should be, training sees what drafting sees."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import VlmTeacherBatch
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

SHAPES = {
    "dynamic": DynamicTree(nodes=8, depth=3, width=3),
    "one-level": DynamicTree(nodes=3, depth=1, width=4),
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3)),
    "chain": Chain(FixedLength(4)),
    "confident-chain": Chain(ConfidenceStop(0.15, longest=5)),
}
RULES = {"static": ("exact", "traversal", "recursive", "match"), "chain": ("exact", "block", "token", "match")}


@pytest.fixture(scope="module")
def eagle() -> Eagle:
    torch.manual_seed(0)
    drafter = Eagle(EagleConfig(HIDDEN, 48, 4, VOCAB)).eval().requires_grad_(False)
    drafter.fc.weight[:, HIDDEN:].normal_(0, 0.1).add_(torch.eye(HIDDEN))  # leans on h, so that some drafts hit
    return drafter


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind, batch", (("llama", 1), ("llava", 4), ("qwen2_5_vl", 4), ("qwen3_vl", 1)))
def test_greedy_output_is_the_targets_own(eagle: Eagle, shape: object, kind: str, batch: int) -> None:
    inputs = prompt(kind, images=0 if kind == "llama" else 3, batch=batch)
    reference = tiny(kind).generate(**inputs, max_new_tokens=24, do_sample=False)
    result = mmspec.generate(
        tiny(kind), drafter=eagle.with_shape(shape), max_new_tokens=24, do_sample=False, return_dict=True, **inputs
    )
    assert torch.equal(result.sequences, reference)
    assert result.stats.drafter_passes > result.stats.target_passes or shape is SHAPES["one-level"]


@pytest.mark.parametrize("shape, rule", [(s, r) for s, rules in RULES.items() for r in rules] + [("dynamic", "exact")])
def test_sampled_requests_draft_by_the_distribution_they_record(eagle: Eagle, shape: str, rule: str) -> None:
    watched = Watched(eagle.with_shape(SHAPES[shape]))
    inputs = prompt("llava", images=1, batch=4)
    out = mmspec.generate(
        tiny("llava"),
        drafter=watched,
        rule=rule,
        seed=3,
        do_sample=True,
        temperature=0.8,
        top_k=20,
        max_new_tokens=16,
        return_dict=True,
        **inputs,
    )
    assert out.stats.exact
    for seen in watched.rounds:
        draft = seen.draft
        if draft.tree.nodes == 1:  # no room was left for a draft
            continue
        assert draft.law.drawn == ("deterministic" if shape == "dynamic" else "without_replacement")
        assert not (draft.value[:, 1:] == IMAGE).any()
        if draft.law.scores is not None:
            parent = draft.tree.parent[0]
            q = draft.law.scores[:, draft.law.row[parent[1:]]].softmax(-1)
            drawn = q.gather(-1, draft.value[:, 1:, None])[..., 0]
            there = slice(None) if draft.valid is None else draft.valid[:, 1:]
            assert (drawn[there] > 0).all()
            assert (q > 0).sum(-1).max() <= 20  # the request's top-k shaped the drafter's law too


@pytest.mark.default_cells("dynamic")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_does_not_depend_on_its_batch(eagle: Eagle, shape: str) -> None:
    """Rows near the end of their room stand beside slower ones."""
    inputs, drafter = prompt("llama", batch=4), eagle.with_shape(SHAPES[shape])
    options = dict(max_new_tokens=12, do_sample=True, top_k=6, temperature=0.8)
    for start in range(0, 16, 4):
        seeds = list(range(start, start + 4))
        together = mmspec.generate(tiny("llama"), drafter=drafter, seed=seeds, **options, **inputs)
        for row, seed in enumerate(seeds):
            ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
            alone = mmspec.generate(tiny("llama"), drafter=drafter, seed=[seed], input_ids=ids, **options)
            assert torch.equal(alone[0, -12:], together[row, -12:])


def test_siblings_differ_and_parents_come_first(eagle: Eagle) -> None:
    watched = Watched(eagle.with_shape(DynamicTree(nodes=20, depth=4, width=4)))
    mmspec.generate(tiny("llama"), drafter=watched, max_new_tokens=8, do_sample=False, **prompt("llama", batch=4))
    for seen in watched.rounds:
        tree, value = seen.draft.tree, seen.draft.value
        if tree.nodes == 1:  # no room was left for a draft
            continue
        assert (tree.parent[:, 1:] < torch.arange(1, tree.nodes)).all()
        for row in range(4):
            # a tie can orphan a node, which is then ruled out
            kept = slice(None) if seen.draft.valid is None else seen.draft.valid[row, 1:]
            pairs = list(zip(tree.parent[row, 1:][kept].tolist(), value[row, 1:][kept].tolist(), strict=True))
            assert len(set(pairs)) == len(pairs)


def test_the_unrolled_training_pass_matches_drafting(eagle: Eagle) -> None:
    torch.manual_seed(1)
    count, root, first = 10, 5, 2
    embeds, hidden = torch.randn(2, 1, count, HIDDEN)
    view = PromptView(embeds, hidden, torch.zeros(1, count, dtype=torch.long))
    outputs = eagle.unroll(eagle.read(view), view, first, depths=4)
    rotary = eagle.layer.rotary(count, embeds.device, embeds.dtype)[None]
    cache = SlotCache(1, count)
    fused = eagle.fuse(embeds[:, : root + 1], hidden[:, : root + 1])
    before = eagle(*fused, rotary[:, : root + 1], cache, None)[:, -1:]
    cache.advance(root + 1)
    for depth in range(4):
        at = root + depth
        if depth:
            fused = eagle.fuse(embeds[:, at : at + 1], before)
            before = eagle(*fused, rotary[:, at : at + 1], cache, torch.zeros(1, 1, 1, at + 1))
            cache.advance(1)
        torch.testing.assert_close(outputs[depth][:, at - first], before[:, 0])


def test_a_few_steps_of_training_lower_the_loss() -> None:
    torch.manual_seed(0)
    model, drafter = tiny("llama"), Eagle(EagleConfig(HIDDEN, 48, 4, VOCAB))
    ids = model.generate(**prompt("llama"), max_new_tokens=40, do_sample=False)
    hidden = model.model(ids).last_hidden_state
    wanted = torch.arange(ids.shape[1])[None] >= ids.shape[1] - 40
    teacher_batch = VlmTeacherBatch(ids, wanted, model.model.embed_tokens(ids), hidden, hidden)
    objective = Objective(((1.0, cross_entropy), (0.2, smooth_l1)), depths=3)
    optimizer, losses = torch.optim.Adam(drafter.parameters(), 3e-3), []
    for _ in range(40):
        loss, notes = objective(drafter, take_apart(model), teacher_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert set(notes) == {"hit0", "hit1", "hit2"} and notes["hit0"] > 0.5


def test_saved_drafters_come_back_and_misfits_are_refused(eagle: Eagle, tmp_path) -> None:
    eagle.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llama"))
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), eagle.state_dict().values(), strict=True))
    wrong = Eagle(EagleConfig(2 * HIDDEN, 48, 4, VOCAB))
    with pytest.raises(ValueError, match="hidden_size 32 as in the target, got 64"):
        mmspec.generate(tiny("llama"), drafter=wrong, max_new_tokens=4, **prompt("llama"))
    other = Eagle(EagleConfig(HIDDEN, 48, 4, VOCAB + 1))
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="vocab_size"):
        load_drafter(tmp_path, target=tiny("llama"))
    (tmp_path / "config.json").write_text('{"kind": "eagle2", "format_version": 1, "depth": 3}')
    with pytest.raises(ValueError, match="config: expected fields of EagleConfig"):
        load_drafter(tmp_path)
    with pytest.raises(ValueError, match="expected a folder or a hub id"):
        load_drafter("nowhere")


@pytest.mark.parametrize("settings", (dict(nodes=0), dict(depth=0), dict(nodes=100, depth=2, width=2)))
def test_impossible_trees_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        DynamicTree(**settings)
    with pytest.raises(ValueError, match="parents"):
        StaticTree((0, 2))
