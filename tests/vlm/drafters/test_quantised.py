"""A quantised copy of the target drafts for it: same words, shared tower, rounded weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mmspec
from mmspec.vlm.drafters import SmallModel
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.quantised import GROUP, RoundedLinear, quantised_copy
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny


@pytest.mark.parametrize(("bits", "wide"), [(8, 64), (4, 64), (8, 43), (4, 43)])
def test_a_weight_moves_by_half_a_step_at_most(bits: int, wide: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(wide, 7)
    rounded, x = RoundedLinear(layer, bits), torch.randn(3, wide)
    steps = layer.weight.abs().amax(1, keepdim=True) / (127 if bits == 8 else 7)
    moved = (rounded.weight - layer.weight).abs()
    assert (moved <= steps / 2 + 1e-6).all() and moved.max() > 0
    torch.testing.assert_close(rounded(x), x @ rounded.weight.T + layer.bias)
    size = rounded.stored.numel() * rounded.stored.element_size()
    assert size == (7 * wide if bits == 8 else 7 * -(-wide // GROUP) * GROUP // 2)


def test_weights_on_the_grid_are_kept() -> None:
    layer = nn.Linear(GROUP, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(2 * GROUP).view(2, GROUP) % 15 - 7.0)
    torch.testing.assert_close(RoundedLinear(layer, 4).weight, layer.weight)


@pytest.mark.parametrize("bits", (8, 4))
def test_the_copy_shares_all_but_the_decoders_matrices(bits: int) -> None:
    model = tiny("llava")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copied = quantised_copy(model, bits)
    own, shared = dict(model.named_parameters()), dict(copied.named_parameters())
    matrices = {name for name in own if name not in shared}
    assert matrices == {name for name in own if "_proj." in name and "language_model" in name} | {"lm_head.weight"}
    assert all(shared[name] is own[name] for name in shared)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not [layer for layer in model.modules() if isinstance(layer, RoundedLinear)]


@pytest.mark.default_cells("llava-8", "qwen2_5_vl-4")
@pytest.mark.parametrize("bits", (8, 4))
@pytest.mark.parametrize("kind", ("llama", "llava", "qwen2_5_vl"))
def test_greedy_words_are_those_of_the_full_model(kind: str, bits: int) -> None:
    inputs = dict(prompt(kind, images=int(kind != "llama"), batch=4), max_new_tokens=16, do_sample=False)
    out = mmspec.generate(tiny(kind), drafter=f"quantised:bits={bits},chain=3", return_dict=True, **inputs)
    assert torch.equal(out.sequences, tiny(kind).generate(**inputs))
    assert out.stats.accept_length > (1.5 if bits == 8 else 1.1)  # random weights in four bits agree now and then


def test_the_record_is_the_copys_distribution() -> None:
    model, inputs = tiny("llama"), prompt("llama")
    copied = quantised_copy(model, 4)
    drafter = Watched(SmallModel(copied))
    mmspec.generate(model, drafter=drafter, max_new_tokens=12, do_sample=True, top_k=0, seed=1, **inputs)
    for r in drafter.rounds:
        text = inputs["input_ids"][0].tolist() + r.tokens[0]
        if r.draft.tree.nodes > 1:
            ids = torch.tensor([text])
            torch.testing.assert_close(r.draft.law.scores[0, 0], copied(ids).logits[0, -1], rtol=1e-4, atol=1e-3)
            assert not torch.allclose(r.draft.law.scores[0, 0], model(ids).logits[0, -1], rtol=1e-4, atol=1e-3)


def test_as_a_target_the_copy_gives_its_own_words() -> None:
    model, inputs = tiny("llama"), dict(prompt("llama", batch=4), max_new_tokens=16, do_sample=False)
    copied = quantised_copy(model, 4)
    own = mmspec.generate(copied, drafter="lookup", **inputs)
    assert torch.equal(own, copied.generate(**inputs)) and not torch.equal(own, model.generate(**inputs))


def test_other_bits_are_refused_and_texts_share_a_copy() -> None:
    with pytest.raises(ValueError, match="bits.*8 or 4.*3"):
        drafter_from_text("quantised:bits=3", tiny("llama"))
    first, second = (drafter_from_text("quantised:chain=2", tiny("llama")) for _ in range(2))
    assert first.parts.model is second.parts.model and first.length.longest == 2
