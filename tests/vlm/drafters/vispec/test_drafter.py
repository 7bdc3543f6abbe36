"""ViSpec: what is compressed and injected where, whatever the number of pictures, padding and place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.eagle import Eagle
from mmspec.vlm.drafters.vispec import ViSpec, ViSpecConfig
from tests.vlm.drafters.trained import SIZES, make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, prompt, tiny

ROWS = {  # picture numbers of the shifted pairs
    "one": [0, 0, 1, 1, 1, 1, 0, 0, 0],
    "three": [1, 1, 1, 0, 2, 2, 2, 3, 3, 3, 3, 0, 0],
    "none": [0, 0, 0],
    "short": [0, 1, 0, 2, 2, 0],
    "last": [0, 0, 0, 1, 1, 1],
    "skipped": [0, 0, 2, 2, 2, 0],  # the only row of picture 1 opened the prompt
}


def vispec(num_q: int = 2, **settings: object) -> ViSpec:
    torch.manual_seed(num_q)
    drafter = ViSpec(ViSpecConfig(**SIZES, num_q=num_q, **settings)).eval().requires_grad_(False)
    drafter.inject.weight.add_(0.2 * torch.randn_like(drafter.inject.weight))
    drafter.inject.bias.normal_()
    return drafter


def view(names: list[str], left: int = 0) -> PromptView:
    """Rows of random pairs; in a batch, padded on the left by `left` and up to the longest on the right."""
    longest = max(len(ROWS[name]) for name in names)
    picture = torch.zeros(len(names), left + longest, dtype=torch.long)
    real = torch.zeros_like(picture, dtype=torch.bool)
    embeds, hidden = torch.full((2, *picture.shape, HIDDEN), torch.nan)
    for row, name in enumerate(names):
        at = slice(left, left + len(ROWS[name]))
        rng = torch.Generator().manual_seed(len(name))
        picture[row, at], real[row, at] = torch.tensor(ROWS[name]), True
        embeds[row, at], hidden[row, at] = torch.randn(2, len(ROWS[name]), HIDDEN, generator=rng)
    if bool(real.all()):
        return PromptView(embeds, hidden, picture)
    return PromptView(embeds.nan_to_num(7), hidden.nan_to_num(7), picture, real)


def by_hand(drafter: ViSpec, name: str) -> tuple[Tensor, list[int], Tensor]:
    """The layer's inputs [R, H], their positions and the last global vector [H], one slot after another."""
    pairs, picture, count = view([name]), ROWS[name], drafter.config.num_q - 1
    embeds, hidden = pairs.embeds[0], pairs.hidden[0]
    rows, positions, vector = [], [], torch.zeros(HIDDEN)
    for slot, number in enumerate(picture):
        if number == 0:
            injected = drafter.inject(torch.cat([hidden[slot], vector]))
            rows.append(drafter.fc(torch.cat([embeds[slot], injected])))
            positions.append(slot)
        elif slot == 0 or picture[slot - 1] != number:
            span = [i for i, n in enumerate(picture) if n == number]
            layer = drafter.config.layer()
            key, value = (
                p(embeds[span]).view(len(span), -1, layer.dim) for p in (drafter.adaptor.k_proj, drafter.adaptor.v_proj)
            )
            weight = torch.einsum("qhd,nhd->hqn", drafter.adaptor.q, key).mul(layer.dim**-0.5).softmax(-1)
            out = drafter.adaptor.o_proj(torch.einsum("hqn,nhd->qhd", weight, value).flatten(1))
            kept = min(count, len(span))
            rows += list(out[:kept])
            positions += span[len(span) - kept :]
            vector = out[-1]
    return torch.stack(rows), positions, vector


@pytest.mark.parametrize("num_q", (2, 4))
@pytest.mark.parametrize("settings", ({}, {"qkv_bias": True, "num_key_value_heads": 2}, {"input_norm": True}))
def test_batched_slots_match_slots_computed_by_hand(num_q: int, settings: dict) -> None:
    drafter = vispec(num_q, **settings)
    for names, left in ((list(ROWS), 0), (list(ROWS), 3), *(([name], 0) for name in ROWS)):
        slots = drafter.read(view(names, left))
        for row, name in enumerate(names):
            inputs, positions, vector = by_hand(drafter, name)
            count = int(slots.count[row])
            assert slots.position[row, :count].tolist() == positions
            assert int(slots.next_position[row]) == len(ROWS[name])
            torch.testing.assert_close(slots.carry[row, :count], inputs)
            torch.testing.assert_close(slots.attend[row, :count], drafter.normed(inputs))
            expected = drafter.inject(torch.cat([torch.zeros(HIDDEN), vector]))
            torch.testing.assert_close(slots.last_context[row], expected)
            text = [left + i for i, n in enumerate(ROWS[name]) if n == 0]
            assert slots.origin[row][slots.origin[row] >= 0].tolist() == text


def test_a_prompt_of_one_token_has_no_slots() -> None:
    drafter = vispec()
    nothing = PromptView(torch.zeros(2, 0, HIDDEN), torch.zeros(2, 0, HIDDEN), torch.zeros(2, 0, dtype=torch.long))
    slots = drafter.read(nothing)
    assert slots.attend.shape == (2, 0, HIDDEN) and slots.next_position.tolist() == [0, 0]
    assert torch.equal(slots.last_context, drafter.inject.bias.expand(2, -1))
    inputs = dict(input_ids=torch.tensor([[7]]), max_new_tokens=8, do_sample=False)
    assert torch.equal(mmspec.generate(tiny("llama"), drafter=drafter, **inputs), tiny("llama").generate(**inputs))


def test_at_the_start_of_stage_2_text_drafts_match_stage_1() -> None:
    eagle = make("eagle")
    drafter = ViSpec.from_stage1(eagle, num_q=3).eval()
    assert isinstance(eagle, Eagle) and drafter.config.num_q == 3
    pairs = view(["none"])
    assert torch.equal(drafter.read(pairs).attend, eagle.read(pairs).attend)
    context = drafter.read(view(["three"])).last_context[:, None]
    embeds, hidden = torch.randn(2, 1, 4, HIDDEN)
    assert torch.equal(drafter.fuse(embeds, hidden, context)[0], eagle.fuse(embeds, hidden)[0])
    shape, drafts = DynamicTree(nodes=8, depth=3, width=3), []
    for one in (eagle, drafter):
        watched = Watched(one.with_shape(shape))
        mmspec.generate(tiny("llava"), drafter=watched, max_new_tokens=20, do_sample=False, **prompt("llava", batch=4))
        drafts.append([(seen.draft.value, seen.draft.tree.parent) for seen in watched.rounds])
    for (value, parent), (other, theirs) in zip(*drafts, strict=True):
        assert torch.equal(value, other) and torch.equal(parent, theirs)


def test_the_unrolled_training_pass_matches_drafting() -> None:
    drafter, pairs, root, first = vispec(), view(["three"]), 11, 4
    slots = drafter.read(pairs)
    outputs = drafter.unroll(slots, pairs, first, depths=2)
    rotary = drafter.layer.rotary(16, torch.device("cpu"), torch.float32)
    at = slots.origin[0].tolist().index(root)
    cache = SlotCache(1, 16)
    read = slice(0, at + 1)
    before = drafter(slots.attend[:, read], slots.carry[:, read], rotary[slots.position[:, read]], cache, None)[:, -1:]
    torch.testing.assert_close(outputs[0][:, at - first], before[:, 0])
    cache.advance(at + 1)
    fused = drafter.fuse(pairs.embeds[:, root + 1 : root + 2], before, slots.last_context[:, None])
    after = drafter(*fused, rotary[None, root + 1 : root + 2], cache, torch.zeros(1, 1, 1, at + 2))
    torch.testing.assert_close(outputs[1][:, at + 1 - first], after[:, 0])


@pytest.mark.parametrize("precision", (torch.float32, torch.bfloat16))
def test_every_weight_learns_from_pictures(precision: torch.dtype) -> None:
    drafter, pairs = vispec(3, qkv_bias=True).requires_grad_(True), view(["three", "one"])
    with torch.autocast("cpu", precision, enabled=precision != torch.float32):
        outputs = drafter.unroll(drafter.read(pairs), pairs, 0, depths=2)
        sum(out.float().square().mean() for out in outputs).backward()
    for name, weight in drafter.named_parameters():
        if name != "adaptor.k_proj.bias":  # moves all scores of a query alike
            assert weight.grad is not None and weight.grad.abs().max() > 0, name


def test_a_single_query_is_refused() -> None:
    with pytest.raises(ValueError, match="num_q: expected at least 2"):
        ViSpecConfig(**SIZES, num_q=1)
