"""Mixture of Attentions: drafts depend on no drafted feature, and cached rows are those mixed from the whole text."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.eagle import Eagle
from mmspec.vlm.drafters.moa import LayerAttention, MixtureOfAttentions, MoaConfig, MoaState
from mmspec.vlm.training.objective import predictions
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.test_chimera import chains_differ
from tests.vlm.drafters.trained import SIZES, make
from tests.vlm.drafters.watched import Planted
from tests.vlm.tiny import HIDDEN, prompt, tiny

WHOLE = pytest.mark.whole


@pytest.mark.parametrize(
    ("kind", "images"),
    [("llava", 1), pytest.param("llama", 0, marks=WHOLE), pytest.param("qwen2_5_vl", 2, marks=WHOLE)],
)
def test_cached_rows_are_those_of_the_whole_text(kind: str, images: int) -> None:
    assert not chains_differ("moa", kind, images)


def test_rows_at_other_positions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mix = MoaState._mix

    def late(self: MoaState, states, position, counts) -> None:
        mix(self, states, position + (self.mixed.width > 0), counts)

    monkeypatch.setattr(MoaState, "_mix", late)
    assert chains_differ("moa", "llava", 1)


def test_training_on_the_rows_of_unverified_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    unroll = MixtureOfAttentions.unroll
    monkeypatch.setattr(MixtureOfAttentions, "unroll", lambda self, *read: unroll(self, *read[:3], 1) * read[3])
    assert chains_differ("moa", "llava", 1)


def drafts(name: str, is_noisy: bool) -> torch.Tensor:
    """The nodes of a tree after three rounds; with noise for the features that drafts begin their next level from."""
    shaped = make(name).with_shape(StaticTree((0, 0, 0, 1, 1, 2)))
    run = mmspec.vlm.start(
        tiny("llava"), drafter=shaped, max_new_tokens=20, do_sample=False, **prompt("llava", 1, batch=4)
    )
    for _ in range(3):
        run.step()
    expand = run.state.expand
    if is_noisy:
        run.state.expand = lambda token, hidden, *rest: expand(token, torch.randn_like(hidden), *rest)
    with torch.no_grad():
        return run.state.propose(run.target, run.keys).value


def test_noise_for_drafted_features_changes_no_draft() -> None:
    assert torch.equal(drafts("moa", True), drafts("moa", False))
    assert issubclass(Eagle, type(make("eagle"))) and not torch.equal(drafts("eagle", True), drafts("eagle", False))


def test_layers_of_a_token_are_mixed_without_other_tokens() -> None:
    mix = LayerAttention(3, HIDDEN, 4, 1e-6)
    states = torch.randn(2, 5, 3 * HIDDEN)
    rows = mix(states)
    other = states.clone()
    other[:, 2] += 1
    assert rows.shape == (2, 5, HIDDEN)
    same = (mix(other) == rows).all(-1)
    assert same[:, [0, 1, 3, 4]].all() and not same[:, 2].any()
    torch.testing.assert_close(mix(states[:1, 3:4]), rows[:1, 3:4])
    parts = states.unflatten(-1, (3, HIDDEN))
    for level in range(3):  # every level counts
        without = parts.clone()
        without[..., level, :] = 0
        assert not torch.allclose(mix(without.flatten(2)), rows)


@pytest.mark.parametrize("kind", ["llava", pytest.param("qwen2_5_vl", marks=WHOLE)])
def test_greedy_text_is_that_of_generate(kind: str) -> None:
    inputs, model = prompt(kind, 2, batch=4), tiny(kind)
    words = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    planted = Planted(make("moa"), truth=words[:, inputs["input_ids"].shape[1] :].tolist())
    out = mmspec.generate(model, drafter=planted, max_new_tokens=16, do_sample=False, return_dict=True, **inputs)
    assert torch.equal(out.sequences, words[:, : out.sequences.shape[1]]) and out.stats.accept_length > 1.3


@pytest.mark.whole
def test_a_row_drafts_the_same_alone_and_in_a_batch() -> None:
    inputs, model = prompt("llama", batch=4), tiny("llama")
    options = dict(max_new_tokens=20, do_sample=True, top_k=6, return_dict=True, drafter=make("moa"))
    together = mmspec.generate(model, seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -20:], together.sequences[row, -20:])


def test_a_row_is_kept_for_each_verified_token_and_trained_at_every_depth() -> None:
    inputs, parts = prompt("llava", 1), take_apart(tiny("llava"))
    chain = make("moa").with_shape(Chain(FixedLength(3)))
    run = mmspec.vlm.start(tiny("llava"), drafter=chain, max_new_tokens=20, do_sample=False, **inputs)
    for _ in range(4):
        run.step()
    with torch.no_grad():
        run.state.propose(run.target, run.keys)
    assert run.state.mixed.lengths == run.target.cache.lengths
    answer = torch.arange(inputs["input_ids"].shape[1])[None] >= inputs["input_ids"].shape[1] - 6
    batch = teacher_pass(parts, inputs, answer, chain.teacher_levels)
    assert len(predictions(chain, parts, batch, 3)) == 3


def test_levels_follow_the_target_and_others_are_refused(tmp_path) -> None:
    parts = take_apart(tiny("llava"))
    assert MixtureOfAttentions.new(parts, {}).levels == (0, 1, 2)
    with pytest.raises(ValueError, match=r"levels: expected layers 0 to 2 of the target, got 5"):
        MixtureOfAttentions(MoaConfig(**SIZES, levels=(0, 5))).check(parts)
    for levels in ((), (2, 1), (-1,)):
        with pytest.raises(ValueError, match="levels: expected rising layers"):
            MoaConfig(**SIZES, levels=levels)
    drafter = make("moa")
    drafter.save_pretrained(tmp_path)
    assert load_drafter(tmp_path, target=tiny("llava")).config == drafter.config
