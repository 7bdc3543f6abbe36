"""HPSv2 and PickScore give what their published formulas give on the libraries' own models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.model import CLIP
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from mmspec import zoo
from mmspec.io.loading import sketch
from mmspec.video import CosineReward, Views, hpsv2_from_state_dict, pickscore_from_state_dict
from mmspec.video.rewards.clip import _H14, ClipEncoder
from mmspec.video.rewards.scores import normalised
from tests.video.rewards.tiny import OPEN_CLIP, TRANSFORMERS, words

PROMPT = "a red ball moves to the left"


def random_(model: torch.nn.Module) -> torch.nn.Module:
    for value in model.parameters():
        value.data.add_(torch.randn_like(value) * 0.2)
    return model.eval()


def frames(count: int = 5, height: int = 32, width: int = 56) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


@torch.no_grad()
def test_hpsv2_is_the_cosine_of_open_clips_features() -> None:
    model, given = random_(CLIP(**OPEN_CLIP)), frames(width=32)
    reward = hpsv2_from_state_dict({"epoch": 1, "state_dict": model.state_dict()}, OPEN_CLIP, tokenizer=words, batch=2)
    image, text = (
        model.encode_image(normalised(given), normalize=True),
        model.encode_text(words([PROMPT]), normalize=True),
    )
    wanted = (image @ text.T).flatten()
    torch.testing.assert_close(reward(given, PROMPT), wanted, atol=1e-6, rtol=1e-5)
    assert wanted.abs().max() < 1 and wanted.std() > 1e-3 and reward.name == "HPSv2"
    torch.testing.assert_close(reward.encoder.model.attn_mask, model.attn_mask)


def test_hpsv2_sees_the_whole_of_a_wide_frame_and_pickscore_its_centre() -> None:
    hps = hpsv2_from_state_dict(random_(CLIP(**OPEN_CLIP)).state_dict(), OPEN_CLIP, tokenizer=words)
    pick = pickscore_from_state_dict(
        random_(CLIPModel(CLIPConfig(**TRANSFORMERS))).state_dict(), TRANSFORMERS, tokenizer=words
    )
    given = frames()
    changed = given.clone()
    changed[..., :6] = 255 - changed[..., :6]  # at the edge, outside the square in the middle
    assert (hps(given, PROMPT) - hps(changed, PROMPT)).abs().min() > 1e-5
    assert torch.equal(pick(given, PROMPT), pick(changed, PROMPT))


@torch.no_grad()
def test_pickscore_is_the_logit_of_transformers() -> None:
    model, given = random_(CLIPModel(CLIPConfig(**TRANSFORMERS))), frames(width=32)
    state = {**model.state_dict(), "text_model.embeddings.position_ids": torch.arange(12)[None]}
    reward = pickscore_from_state_dict(state, TRANSFORMERS, tokenizer=words, batch=2)
    wanted = model(input_ids=words([PROMPT]), pixel_values=normalised(given)).logits_per_image.flatten()
    torch.testing.assert_close(reward(given, PROMPT), wanted, atol=1e-4, rtol=1e-5)
    assert wanted.std() > 1e-2 and reward.scale == pytest.approx(model.logit_scale.exp().item())


@pytest.mark.parametrize("kind", ["hpsv2", "pickscore"])
def test_weights_in_half_precision_score_much_as_in_full(kind: str) -> None:
    model = random_(CLIP(**OPEN_CLIP) if kind == "hpsv2" else CLIPModel(CLIPConfig(**TRANSFORMERS)))
    load, config = (hpsv2_from_state_dict, OPEN_CLIP) if kind == "hpsv2" else (pickscore_from_state_dict, TRANSFORMERS)
    full = load(model.state_dict(), config, tokenizer=words)
    half = load({name: value.half() for name, value in model.state_dict().items()}, config, tokenizer=words)
    given = frames()
    found, wanted = half(given, PROMPT), full(given, PROMPT)
    assert half.encoder.model.logit_scale.dtype == torch.float16 and found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=0.01 * full.scale, rtol=0)


def test_the_published_sizes_are_those_of_one_architecture() -> None:
    hps = sketch(lambda: CLIP(**open_clip.get_model_config("ViT-H-14")), 10**3, "hps")
    pick = sketch(lambda: CLIPModel(CLIPConfig(**_H14)), 10**3, "pick")
    counts = {sum(value.numel() for value in model.parameters()) for model in (hps, pick)}
    assert counts == {986_109_441}


@torch.no_grad()
def test_the_tokenizer_that_open_clip_carries_is_used_where_none_is_given() -> None:
    config = {**OPEN_CLIP, "text_cfg": {**OPEN_CLIP["text_cfg"], "vocab_size": 49408}}
    reward = hpsv2_from_state_dict(random_(CLIP(**config)).state_dict(), config)
    ids = reward.encoder.tokenizer([PROMPT, "ball " * 40])
    assert ids.shape == (2, 12) and ids[0, 0] == 49406 and (ids == 49407).any(1).all()
    assert reward(frames(2), PROMPT).shape == (2,)


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: sd.pop("visual.proj"), OPEN_CLIP, r"got no visual\.proj"),
        (
            lambda sd: sd.update({"score_predictor.weight": torch.zeros(1)}),
            OPEN_CLIP,
            r"unknown score_predictor\.weight",
        ),
        (lambda sd: sd.update({"logit_scale": torch.zeros(2)}), OPEN_CLIP, r"logit_scale of shape \(2,\)"),
        (lambda sd: None, {**OPEN_CLIP, "width": 3}, r"got \['width'\] too"),
        (lambda sd: None, None, "expected every published key in the shapes of the config"),
    ],
)
def test_files_of_another_model_are_refused(change: Callable, config: dict | None, message: str) -> None:
    state = CLIP(**OPEN_CLIP).state_dict()
    change(state)
    with pytest.raises(ValueError, match=message):
        hpsv2_from_state_dict(state, config, tokenizer=words)
    with pytest.raises(ValueError, match="expected every published key"):
        pickscore_from_state_dict(state, TRANSFORMERS, tokenizer=words)


def test_squares_of_another_size_and_pickles_are_refused(tmp_path: Path) -> None:
    encoder = ClipEncoder(CLIP(**OPEN_CLIP), words)
    with pytest.raises(ValueError, match=r"expected uint8 \[N, 3, 32, 32\].*Views\(size=32\)"):
        CosineReward(encoder)(frames(), PROMPT)
    with pytest.raises(ValueError, match=r"HPS\.pt: expected a \.safetensors file.*mmspec convert .* --kind reward"):
        hpsv2_from_state_dict(tmp_path / "HPS.pt")


def test_the_zoos_clip_is_a_reward_as_it_is() -> None:
    clip, given = zoo.load("clip"), frames(height=64, width=64)
    found = CosineReward(clip)(given, "a red circle")
    torch.testing.assert_close(found, clip.score(given, ["a red circle"] * len(given)), atol=1e-6, rtol=1e-5)
    wide = CosineReward(clip, views=Views(64, crops="cover"))(frames(height=64, width=112), "a red circle")
    assert wide.shape == (5,)
