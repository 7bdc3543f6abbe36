"""Rounds that lean on pictures get no draft, the words stay, and the lean is the attention the drafter really pays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters import PromptLookup
from mmspec.vlm.drafters.viskip import VisionSkip, reliance
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny


def decode(threshold: float, batch: int = 4, name: str = "msd", kind: str = "llava", **options):
    watched = Watched(VisionSkip(make(name).with_shape(Chain(FixedLength(3)), StaticTree()), threshold))
    inputs = prompt(kind, images=2, batch=batch)
    options = dict(max_new_tokens=16, do_sample=False) | options
    return mmspec.generate(tiny(kind), drafter=watched, return_dict=True, **options, **inputs), watched, inputs


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ("msd", "vispec", "flash", "specvlm"))
@pytest.mark.parametrize("threshold", (0.0, 0.2, 1.0))
def test_words_stay_whatever_is_skipped(name: str, threshold: float) -> None:
    out, watched, inputs = decode(threshold, name=name)
    reference = tiny("llava").generate(**inputs, max_new_tokens=16, do_sample=False)
    assert torch.equal(out.sequences, reference)
    assert out.stats.drafter == f"viskip({make(name).name})"


def test_only_rows_that_show_pictures_are_skipped() -> None:
    _, watched, _ = decode(0.0, max_new_tokens=12)
    for seen in watched.rounds:
        if seen.draft.tree.nodes > 1:  # row 1 shows none, so it always gets its draft
            assert [bool(seen.drafted(row)) for row in (0, 2, 3)] == [False] * 3
    assert any(seen.drafted(1) for seen in watched.rounds)
    alone, watched, _ = decode(0.0, batch=1)
    assert all(seen.draft.tree.nodes == 1 for seen in watched.rounds)
    assert alone.stats.accept_length == 1.0
    _, watched, _ = decode(1.0, batch=1)
    assert watched.state.skipped == 0 and all(seen.draft.tree.nodes > 1 for seen in watched.rounds[:-1])


def test_sampled_rows_keep_their_draft_distribution() -> None:
    out, watched, _ = decode(0.2, do_sample=True, temperature=0.8, top_k=20, seed=3)
    assert out.stats.exact and any(seen.draft.valid is not None for seen in watched.rounds)


@pytest.mark.parametrize("name", ("eagle", "msd", "vispec"))
def test_reliance_is_the_attention_paid_to_pictures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(name).with_shape(Chain(FixedLength(2)))
    layer, paid = drafter.layer, []
    attention = layer.attention

    def spied(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        weight = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + (0 if bias is None else bias)).softmax(-1)
        paid.append(weight.mean(1))
        return attention(q, k, v, bias, causal)

    request = mmspec.vlm.start(
        tiny("llava"), drafter=drafter, max_new_tokens=12, do_sample=False, **prompt("llava", images=2, batch=4)
    )
    for _ in range(4):
        request.step()
        state = request.state
        paid.clear()
        with monkeypatch.context() as patch:
            patch.setattr(layer, "attention", spied)
            state.ready()
        counts = state.counts
        weight = torch.stack([paid[-1][row, n - 1] for row, n in enumerate(counts)])
        wide = torch.zeros_like(weight)
        wide[:, : state.pictures.shape[1]] = state.pictures[:, : weight.shape[1]].float()
        expected = (weight * wide).sum(-1)
        torch.testing.assert_close(reliance(state), expected)
        assert expected[1] == 0 and expected[0] > 0


def test_drafters_without_picture_slots_are_refused() -> None:
    for drafter, name in ((make("eagle_without_pictures"), "eagle"), (PromptLookup(), "prompt_lookup")):
        with pytest.raises(ValueError, match=f"pictures, got '{name}'"):
            mmspec.generate(tiny("llava"), drafter=VisionSkip(drafter), max_new_tokens=8, **prompt("llava", images=1))
        inputs = prompt("llava")  # a prompt of text alone is drafted for as ever
        mmspec.generate(tiny("llava"), drafter=VisionSkip(drafter), max_new_tokens=8, do_sample=False, **inputs)
    with pytest.raises(ValueError, match="threshold"):
        VisionSkip(make("msd"), 1.5)
