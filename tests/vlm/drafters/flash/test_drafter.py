"""FLASH: pooled pictures, blocks of k tokens a pass, the target's words in every shape, glancing."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.picture_pooling import LatentPool
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.flash.flash_drafter import Flash, FlashConfig
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.objective_wrappers import Glancing
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

SHAPES = {
    "dynamic": DynamicTree(nodes=8, depth=4, width=3),
    "static": StaticTree((0, 0, 0, 1, 1, 2, 3, 3, 6, 8)),
    "chain": Chain(FixedLength(7)),
    "confident-chain": Chain(ConfidenceStop(0.15, longest=5)),
}
TERMS = ((1.0, cross_entropy), (0.2, smooth_l1))
PROMPT = dict(kind="llava", images=3, batch=4, seed=1)  # no placeholder among the words


def teacher_batch(new_tokens: int) -> VlmTeacherBatch:
    """The words of the tiny llava on a ragged batch of 3, 0, 1 and 3 pictures."""
    inputs = prompt(**PROMPT)
    ids = tiny("llava").generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    return said("llava", inputs, ids)


def said(kind: str, inputs: dict[str, Tensor], ids: Tensor) -> VlmTeacherBatch:
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(ids)[:, inputs["input_ids"].shape[1] :]], 1)
    answer = torch.zeros_like(ids, dtype=torch.bool)
    answer[:, inputs["input_ids"].shape[1] :] = True
    return teacher_pass(take_apart(tiny(kind)), dict(inputs, input_ids=ids, attention_mask=mask), answer)


def fit(drafter: Flash, objective: object, steps: int, taught: VlmTeacherBatch) -> list[tuple[float, dict[str, float]]]:
    torch.manual_seed(1)
    parts, optimizer, seen = take_apart(tiny("llava")), torch.optim.Adam(drafter.parameters(), 4e-3), []
    for step in range(steps):
        loss, notes = objective(drafter, parts, taught, step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((float(loss.detach()), notes))
    return seen


@cache
def taught() -> Flash:
    """A small FLASH that knows the words of `teacher_batch` by heart."""
    torch.manual_seed(0)
    drafter = Flash(FlashConfig(HIDDEN, 64, 4, VOCAB, latents=3, block=3))
    fit(drafter, Objective(TERMS, depths=6, decay=1.0), 80, teacher_batch(16))
    return drafter.eval().requires_grad_(False)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_greedy_words_are_those_of_transformers(kind: str, shape: str) -> None:
    for images, batch in ((0, 1), (1, 1), (3, 4)):
        inputs = prompt(kind, images=images, batch=batch)
        reference = tiny(kind).generate(**inputs, max_new_tokens=10, do_sample=False)
        for block in (1, 2, 3):
            drafter = make("flash").with_block(block).with_shape(SHAPES[shape])
            out = mmspec.generate(tiny(kind), drafter=drafter, max_new_tokens=10, do_sample=False, **inputs)
            assert torch.equal(out, reference)


@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_runs_of_several_blocks_change_no_word(shape: str) -> None:
    inputs = prompt(**PROMPT)
    out = mmspec.generate(
        tiny("llava"),
        drafter=taught().with_shape(SHAPES[shape]),
        max_new_tokens=16,
        do_sample=False,
        return_dict=True,
        **inputs,
    )
    assert torch.equal(out.sequences, tiny("llava").generate(**inputs, max_new_tokens=16, do_sample=False))
    if shape != "confident-chain":
        assert max(max(filter(None, line), default=0) for line in out.stats.accepted) >= 4  # more than one block
        assert out.stats.accept_length > 2


@pytest.mark.parametrize("block, length", ((1, 4), (2, 6), (3, 6), (3, 7)))
def test_a_chain_of_k_times_m_tokens_costs_m_passes(block: int, length: int) -> None:
    drafter = make("flash").with_block(block).with_shape(Chain(FixedLength(length)))
    watched = Watched(drafter)
    mmspec.generate(tiny("llama"), drafter=watched, max_new_tokens=2 * length + 2, do_sample=False, **prompt("llama"))
    passes = 1  # the prompt's
    for seen in watched.rounds:
        drafted = seen.draft.tree.nodes - 1
        passes += -(-drafted // block)
    assert watched.passes == passes
    assert watched.rounds[0].draft.tree.nodes == length + 1


def recomputed(drafter: Flash, slots: object, path: list[int], embed: torch.nn.Module) -> Tensor:
    """The feature the children of the last token of `path` are drawn from, without any cache."""
    attend, offset = slots.attend, len(path) % drafter.block
    for at in range(0, len(path) - offset + 1, drafter.block):
        rotary = drafter.layer.rotary(attend.shape[1], attend.device, attend.dtype)[None]
        out = drafter(attend, attend, rotary, SlotCache(1, attend.shape[1]), None)[:, -1]
        features = drafter.layer.expansion(out, drafter.block).view(1, drafter.block, HIDDEN)
        block = path[at : at + drafter.block]
        if len(block) == drafter.block:
            attend = torch.cat([attend, drafter.fuse(embed(torch.tensor([block])), features)[0]], 1)
    return features[:, offset]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ("flash", "flash_residual"))
@pytest.mark.parametrize("shape", ("static", "chain"))
@pytest.mark.parametrize("block", (1, 2, 3))
def test_drafts_over_the_cache_match_a_full_pass(name: str, shape: str, block: int) -> None:
    inputs, model, drafter = prompt("llava", images=2), tiny("llava"), make(name).with_block(block)
    watched = Watched(drafter.with_shape(SHAPES[shape]))
    ids = mmspec.generate(
        model, drafter=watched, seed=4, do_sample=True, top_k=0, temperature=1.5, max_new_tokens=16, **inputs
    )
    whole, parts = said("llava", inputs, ids), take_apart(model)
    for seen in watched.rounds:
        draft, here = seen.draft, inputs["input_ids"].shape[1] + len(seen.tokens[0]) - 1
        if draft.tree.nodes == 1:
            continue
        cut = VlmTeacherBatch(
            ids[:, : here + 1], whole.answer, whole.embeds[:, : here + 1], None, whole.hidden[:, : here + 1]
        )
        slots = drafter.read(cut.prompt_view(parts))
        for node in range(draft.tree.nodes):
            row = int(draft.law.row[node])
            if row < 0:
                continue
            path = draft.value[0, draft.tree.path[0, node, 1 : int(draft.tree.depth[0, node]) + 1]].tolist()
            expected = parts.head(recomputed(drafter, slots, path, parts.embed))[0] / 1.5
            kept = draft.law.scores[0, row].isfinite()
            torch.testing.assert_close(draft.law.scores[0, row][kept], expected[kept], atol=5e-3, rtol=1e-3)


def test_a_dynamic_tree_scores_its_nodes_like_chains() -> None:
    """The tree of width 1 is the greedy chain; at width 3 the greedy chain is one of its paths while it fits."""
    inputs = prompt("llava", images=1)
    chain = Watched(make("flash").with_block(2).with_shape(Chain(FixedLength(5))))
    line = Watched(make("flash").with_block(2).with_shape(DynamicTree(nodes=5, depth=5, width=1)))
    for watched in (chain, line):
        mmspec.generate(tiny("llava"), drafter=watched, max_new_tokens=12, do_sample=False, **inputs)
    for round_, other in zip(chain.rounds, line.rounds, strict=True):
        count = min(round_.draft.value.shape[1], other.draft.value.shape[1])
        assert torch.equal(round_.draft.value[:, :count], other.draft.value[:, :count])


@pytest.mark.parametrize("shape", ("static", "chain"))
def test_a_row_drafts_the_same_alone_and_in_a_batch(shape: str) -> None:
    inputs, model, drafter = prompt("llama", batch=4), tiny("llama"), make("flash").with_shape(SHAPES[shape])
    options = dict(max_new_tokens=12, do_sample=True, temperature=0.8, return_dict=True)
    together = mmspec.generate(model, drafter=drafter, seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=drafter, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -12:], together.sequences[row, -12:])


@pytest.mark.parametrize(
    "shape, rule",
    (("static", "exact"), ("static", "recursive"), ("chain", "exact"), ("chain", "token"), ("dynamic", "exact")),
)
def test_sampled_requests_draft_by_the_distribution_they_record(shape: str, rule: str) -> None:
    watched = Watched(make("flash").with_shape(SHAPES[shape]))
    out = mmspec.generate(
        tiny("llava"),
        drafter=watched,
        rule=rule,
        seed=3,
        do_sample=True,
        temperature=0.8,
        top_k=20,
        max_new_tokens=12,
        return_dict=True,
        **prompt("llava", images=1, batch=4),
    )
    assert out.stats.exact
    for seen in watched.rounds:
        draft = seen.draft
        if draft.tree.nodes == 1:
            continue
        assert draft.law.drawn == ("deterministic" if shape == "dynamic" else "without_replacement")
        assert not (draft.value[:, 1:] == IMAGE).any()
        if draft.law.scores is not None:
            q = draft.law.scores[:, draft.law.row[draft.tree.parent[0, 1:]]].softmax(-1)
            assert (q.gather(-1, draft.value[:, 1:, None]) > 0).all()
            assert (q > 0).sum(-1).max() <= 20


def text_view(count: int, dtype: torch.dtype = torch.float32) -> PromptView:
    return PromptView(*torch.randn(2, 1, count, HIDDEN, dtype=dtype), torch.zeros(1, count, dtype=torch.long))


@pytest.mark.parametrize("name", ("flash", "flash_residual"))
@pytest.mark.parametrize("block", (1, 2, 3))
@pytest.mark.parametrize("shown", ((), (6, 8)))
def test_the_unrolled_training_pass_matches_drafting(name: str, block: int, shown: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    count, root, first, depths = 14, 5, 2, 8
    drafter = make(name).double().with_block(block)  # eight passes on one another: float32's rounding is machine's own
    view = text_view(count, torch.float64)
    reveal = torch.zeros(1, count, dtype=torch.bool)
    reveal[:, list(shown)] = True
    slots = drafter.read(view)
    outputs = drafter.unroll(slots, view, first, depths, reveal if shown else None)
    assert [len(out[0]) for out in outputs] == [count - first] * depths
    attend = slots.attend[:, : root + 1]
    for depth in range(depths):
        if depth % block == 0:
            rotary = drafter.layer.rotary(attend.shape[1], attend.device, attend.dtype)[None]
            out = drafter(attend, attend, rotary, SlotCache(1, count), None)[:, -1]
            features = drafter.layer.expansion(out, block).view(1, block, HIDDEN)
            ahead = slice(root + depth + 1, root + depth + 1 + block)
            pairs = min(block, count - root - depth - 1)
            fused = drafter.fuse(view.embeds[:, ahead], features[:, :pairs])[0]
            told = reveal[:, ahead, None]
            attend = torch.cat([attend, torch.where(told, slots.attend[:, ahead], fused)], 1)
        torch.testing.assert_close(
            outputs[depth][:, root + depth - first], features[:, depth % block], atol=1e-5, rtol=1e-5
        )


def test_pictures_are_pooled_in_their_place_and_small_pictures_are_unchanged() -> None:
    torch.manual_seed(0)
    drafter = make("flash")  # 3 latents
    picture = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 2, 2, 2, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
    embeds, hidden = torch.randn(2, 2, 13, HIDDEN)
    real = torch.ones_like(picture, dtype=torch.bool)
    real[1, :4] = False
    slots = drafter.read(PromptView(embeds, hidden, picture, real))
    fused = drafter.fuse(embeds, hidden)[0]
    assert slots.count.tolist() == [11, 9] and slots.next_position.tolist() == [11, 9]
    assert slots.position[0].tolist() == list(range(11))
    assert slots.origin[0].tolist() == [-1, -1, -1, -1, -1, 7, -1, -1, -1, 11, 12]
    assert slots.origin[1, :9].tolist() == list(range(4, 13))
    weight = (drafter.pool.latents @ hidden[0, 2:7].T).softmax(-1)
    expected = [hidden[0, :2], weight @ hidden[0, 2:7], fused[0, 7:8], hidden[0, 8:11], fused[0, 11:]]
    torch.testing.assert_close(slots.attend[0], torch.cat(expected))
    torch.testing.assert_close(slots.attend[1, :9], fused[1, 4:])


def test_as_many_latents_as_states_and_identity_weights_compress_nothing() -> None:
    torch.manual_seed(0)
    pool, rows = LatentPool(8, HIDDEN), torch.linalg.qr(torch.randn(HIDDEN, 8)).Q.T[None]  # orthonormal [1, 8, H]
    pool.latents.data = rows[0] * 1e3  # each query finds its own row
    there = torch.ones(1, 8, dtype=torch.bool)
    assert torch.equal(pool(rows, there), rows)
    narrow, wide = (Flash(FlashConfig(HIDDEN, 64, 4, VOCAB, latents=n, block=3)).eval() for n in (4, 50))
    state = {k: v for k, v in narrow.state_dict().items() if k != "pool.latents"}
    wide.load_state_dict(state, strict=False)
    inputs = prompt("llava", images=3)  # 4 states a picture
    texts = []
    for drafter in (narrow, wide):
        watched = Watched(drafter.with_shape(Chain(FixedLength(4))))
        mmspec.generate(tiny("llava"), drafter=watched, max_new_tokens=8, do_sample=False, **inputs)
        texts.append([seen.draft.value.tolist() for seen in watched.rounds])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ("flash", "flash_autoregressive"))
def test_other_pictures_give_other_drafts(name: str) -> None:
    inputs, features = prompt("llava", images=1), []
    for pixels in (inputs["pixel_values"], -inputs["pixel_values"]):
        ids = inputs["input_ids"]
        one = said("llava", dict(inputs, pixel_values=pixels), torch.cat([ids, ids[:, :4]], 1))
        view = one.prompt_view(take_apart(tiny("llava")))
        drafter = make(name)
        features.append(drafter.unroll(drafter.read(view), view, 0, 1)[0][:, -1])
    assert (features[0] - features[1]).abs().max() > 1e-2


def test_training_and_glancing_lower_the_loss() -> None:
    torch.manual_seed(0)
    deep, batch = Objective(TERMS, depths=4), teacher_batch(12)
    for objective in (deep, Glancing(deep)):
        drafter = Flash(FlashConfig(HIDDEN, 64, 4, VOCAB, latents=2, block=2))
        seen = fit(drafter, objective, 30, batch)
        assert seen[-1][0] < 0.7 * seen[0][0]
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in drafter.parameters())
    shown = [notes["shown"] for _, notes in seen]
    assert 0.3 < shown[0] <= 0.4 and shown[-1] < 0.1


def test_glancing_shows_nothing_at_the_end_and_wants_blocks() -> None:
    batch, parts = teacher_batch(8), take_apart(tiny("llava"))
    drafter = make("flash")
    deep = Objective(TERMS, depths=5)
    plain, _ = deep(drafter, parts, batch)
    torch.manual_seed(0)
    assert torch.equal(Glancing(deep)(drafter, parts, batch, 1.0)[0], plain)
    assert not torch.equal(Glancing(deep)(drafter, parts, batch, 0.0)[0], plain)
    _, notes = Glancing(deep, slope=0.35, floor=0.1)(drafter, parts, batch, 1.0)
    assert 0 < notes["shown"] <= 0.11
    with pytest.raises(ValueError, match="depths above its block, got block 3 and depths 3"):
        Glancing(Objective(TERMS, depths=3))(drafter, parts, batch)
    with pytest.raises(ValueError, match="expected a drafter of blocks"):
        Glancing(deep)(make("eagle"), parts, batch)
    with pytest.raises(ValueError, match="head 'ar'"):
        Glancing(deep)(make("flash_autoregressive"), parts, batch)
    with pytest.raises(ValueError, match="sum to at most 1"):
        Glancing(deep, slope=1.0, floor=0.5)


def test_saved_drafters_are_restored_and_invalid_settings_are_refused(tmp_path) -> None:
    drafter = make("flash")
    drafter.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert isinstance(again, Flash) and again.config == drafter.config and again.block == 3
    assert all(
        torch.equal(a, b) for a, b in zip(again.state_dict().values(), drafter.state_dict().values(), strict=True)
    )
    for block in (0, 4):
        with pytest.raises(ValueError, match=f"block: expected 1 to 3, the offsets of this drafter, got {block}"):
            drafter.with_block(block)
    for wrong in (dict(head="cnn"), dict(latents=-1), dict(block=0), dict(head="ar", block=2)):
        with pytest.raises(ValueError, match="expected"):
            FlashConfig(HIDDEN, 64, 4, VOCAB, **wrong)
