"""Captions in MAR's buffer: a feature a position, and classes as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec import zoo
from mmspec.imagegen import MARPipeline, mar_from_state_dict
from mmspec.imagegen.continuous.cspd.cspd_drafter import CSpD
from mmspec.imagegen.continuous.mar.transformer import MAR
from tests.imagegen.continuous.tiny import SIZES, pipeline, redrawn, transformer

WITH = replace(SIZES, caption_dim=6)


def encode(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of a text that depend on it alone, zero at padding."""
    features = torch.zeros(len(texts), 3, 6)
    for row, text in enumerate(texts):
        drawn = torch.Generator().manual_seed(sum(map(ord, text)))
        features[row, 1:] = torch.randn(2, 6, generator=drawn)
    return features, features.any(-1)


def captioned(**how) -> MARPipeline:
    return MARPipeline(redrawn(MAR(WITH)), None, encode, num_iter=4, **how)


def test_class_outputs_are_unchanged_by_caption_support() -> None:
    own, wider = transformer(), MAR(WITH).eval()
    wider.load_state_dict(own.state_dict(), strict=False)
    tokens, mask, labels = torch.randn(3, 16, 3), torch.rand(3, 16) < 0.5, torch.tensor([0, 4, -1])
    assert torch.equal(own(tokens, mask, labels), wider(tokens, mask, labels))
    assert not any(name.startswith("caption") for name in own.state_dict())


@torch.no_grad()
def test_each_position_of_the_buffer_holds_its_own_feature() -> None:
    model, features = redrawn(MAR(WITH)), encode(["red", "blue"])[0]
    tokens, mask = torch.randn(2, 16, 3), torch.rand(2, 16) < 0.5
    z = model(tokens, mask, features)
    for at in range(3):
        other = features.clone()
        other[0, at] += 1
        changed = (model(tokens, mask, other) != z).any(-1).any(-1)
        assert changed.tolist() == [True, False]
    assert not torch.allclose(model(tokens, mask, features.flip(1)), z)


@torch.no_grad()
def test_a_caption_of_zeros_is_no_caption() -> None:
    model, features = redrawn(MAR(WITH)), encode(["red", "blue"])[0]
    features[1] = 0
    tokens, mask = torch.randn(2, 16, 3), torch.tensor([True] * 9 + [False] * 7).expand(2, 16)
    none = model(tokens[1:], mask[1:], torch.tensor([-1]))
    torch.testing.assert_close(model(tokens, mask, features)[1:], none, atol=1e-5, rtol=1e-5)


def test_prompts_become_tokens_and_are_guided_away_from_nothing() -> None:
    pipe = captioned()
    out = [pipe(["red", "blue"], seed=[1, 2], guidance_scale=scale, pixels=False).tokens for scale in (1.0, 3.0, 0.0)]
    assert out[0].shape == (2, 16, 3) and not any(torch.equal(out[0][0], one[0]) for one in out[1:])
    alone = pipe("blue", seed=2, guidance_scale=3.0, pixels=False).tokens
    torch.testing.assert_close(out[1][1:], alone, atol=1e-4, rtol=1e-4)
    nothing = pipe([-1], seed=[1], guidance_scale=1.0, pixels=False).tokens
    # at scale 0 the noise is the unconditional one; the variance is not guided
    assert not torch.allclose(out[2][:1], out[0][:1]) and nothing.isfinite().all()


@pytest.mark.parametrize("context", ("prefix", "drafts"))
def test_a_drafter_of_another_width_reads_the_same_captions(context: str) -> None:
    pipe, small = captioned(), MARPipeline(redrawn(MAR(replace(WITH, encoder_embed_dim=8, decoder_embed_dim=8)), 1))
    ask = {"prompts": ["red", "blue"], "seed": [1, 2], "num_iter": 8, "guidance_scale": 2.0, "pixels": False}
    own = pipe(**ask, decoding=CSpD(pipe, window="truncate", gamma=2, context="drafts", tolerance=1e-3)).tokens
    torch.testing.assert_close(own, pipe(**ask).tokens, atol=2e-3, rtol=2e-3)
    out = pipe(**ask, decoding=CSpD(small, gamma=2, context=context))
    assert out.tokens.isfinite().all() and not out.errors and out.stats.drafter_passes > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MARPipeline(transformer(), None, encode), "captions: expected None for a model without caption_dim"),
        (lambda: pipeline()("red", pixels=False), "prompts: expected class labels"),
        (lambda: captioned()(["red", 3], pixels=False), "expected texts or class labels, got both"),
        (lambda: captioned()([3, "red"], pixels=False), "prompts: expected class labels"),
        (lambda: replace(SIZES, caption_dim=-1), "caption_dim: expected at least 0"),
        (lambda: captioned().save_pretrained(Path("nowhere")), "captions: expected a CaptionEncoder"),
        (
            lambda: MARPipeline(MAR(replace(SIZES, caption_dim=7)), None, encode)("red", pixels=False),
            "captions: expected fe",
        ),
    ],
)
def test_invalid_caption_inputs_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_tell_the_width_of_captions() -> None:
    model = redrawn(MAR(WITH))
    told = {name: value for name, value in WITH.to_dict().items() if name != "caption_dim"}
    assert mar_from_state_dict(model.state_dict(), told).config == WITH


def test_a_pipeline_with_captions_comes_back(tmp_path: Path) -> None:
    captions = zoo.load("t2i").model.captions
    config = replace(SIZES, caption_dim=128, buffer_size=captions.length)
    pipe = MARPipeline(redrawn(MAR(config), std=0.05), None, captions, num_iter=4)
    pipe.save_pretrained(tmp_path)
    again = MARPipeline.from_pretrained(tmp_path)
    asked = {"prompts": ["a red star"], "seed": 3, "pixels": False}
    torch.testing.assert_close(again(**asked).tokens, pipe(**asked).tokens)
