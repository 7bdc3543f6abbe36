"""A pipeline in a folder, and texts as its model reads them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from mmspec.video import (
    BlockPlan,
    BlockVideoPipeline,
    Cached,
    FewStep,
    FlowMap,
    PromptEncoder,
    Rebuilt,
    StreamingWanVAE,
    WanVideo,
)
from mmspec.video.pipeline_files import read_vae, write_vae
from mmspec.video.prompt_encoder import PromptReader
from tests.video.decoding.tiny import SIZE, bright, drafter, encode, pipeline, sdvg, vae
from tests.video.tiny import SIZES, text, video, wan
from tests.video.vae.tiny import KINDS, autoencoder

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "ball", "rolls", "left"]


def encoder(length: int = 6) -> PromptEncoder:
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=len(WORDS), d_model=SIZES.text_dim, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )
    return PromptEncoder(UMT5EncoderModel(config), tokenizer, length)


MODELS = {
    "cached": WanVideo(
        wan(), Cached(5, 1, None, "window", True), FewStep((1000, 400), 3.0, warp=False), BlockPlan(2, (1, 3))
    ),
    "rebuilt from pixels": WanVideo(wan(), Rebuilt(2, vae()), FewStep.krea(3)),
    "rebuilt": WanVideo(wan(), Rebuilt(2), FlowMap(2, 4.0, until=False), BlockPlan(2), 20.0, "mine"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_gives_the_same_videos(kind: str, tmp_path: Path) -> None:
    pipe = BlockVideoPipeline(MODELS[kind], vae(), encoder(), size=SIZE, blocks=3)
    pipe.save_pretrained(tmp_path)
    assert not list(tmp_path.rglob("*.bin")) and {file.suffix for file in tmp_path.rglob("*.*")} == {
        ".json",
        ".safetensors",
    }
    same = BlockVideoPipeline.from_pretrained(tmp_path)
    settings = ("sampler", "plan", "context_noise", "name")
    assert all(getattr(same.model, name) == getattr(pipe.model, name) for name in settings)
    if getattr(same.model.context, "vae", None) is not None:
        assert same.model.context == replace(pipe.model.context, vae=same.vae) and kind == "rebuilt from pixels"
    else:
        assert same.model.context == pipe.model.context
    assert (same.size, same.blocks, same.vae.layout) == (pipe.size, pipe.blocks, pipe.vae.layout)
    one, other = (each(["a red ball", "ball rolls left"], seed=0) for each in (pipe, same))
    # weights that were read lie elsewhere in memory, by which some processors' products round otherwise
    torch.testing.assert_close(other.latents, one.latents, atol=1e-5, rtol=1e-5)
    assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(one.videos, other.videos, strict=True))
    assert not np.array_equal(one.videos[0], one.videos[1])
    routed = same("a red ball", seed=0, decoding=sdvg(bright, math.inf, drafter=drafter(plan=pipe.model.plan)))
    torch.testing.assert_close(routed.latents[0], one.latents[0], atol=1e-5, rtol=1e-5)
    assert routed.stats.exact


def test_a_pipeline_without_a_text_encoder_comes_back_without(tmp_path: Path) -> None:
    BlockVideoPipeline(video(), vae(), size=SIZE).save_pretrained(tmp_path)
    same = BlockVideoPipeline.from_pretrained(tmp_path, dtype=torch.float64)
    assert same.encoder is None and same.blocks == 7 and same.model.dtype == torch.float64
    assert same(text(), seed=0, blocks=1).latents[0].dtype == torch.float64


def test_unsavable_parts_are_refused(tmp_path: Path) -> None:
    for pipe, told in (
        (pipeline(), "encoder: expected a PromptEncoder to save, got function"),
        (
            BlockVideoPipeline(video(Rebuilt(2, StreamingWanVAE(autoencoder()))), vae(), size=SIZE),
            "context: expected one of cached, rebuilt, with no autoencoder but the pipeline's",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            pipe.save_pretrained(tmp_path)
        assert not (tmp_path / "model_index.json").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_class_name": "WanPipeline"}, "expected a BlockVideoPipeline, got 'WanPipeline'"),
        ({"sampler": {"kind": "euler"}}, "sampler: expected a kind of few_step, flow_map, got 'euler'"),
        ({"sampler": {"kind": "few_step", "steps": "many"}}, "steps: expected"),
        ({"sampler": {"kind": "few_step", "stride": 2}}, "expected fields of FewStep"),
        ({"context": {"kind": "rebuilt", "vae": 3}}, "context: expected true or false for vae, got 3"),
        ({"context": {"kind": "cached", "vae": True}}, "expected fields of Cached, got .*vae"),
        ({"context": {"kind": "cached", "positions": "relative"}}, "positions: expected 'absolute' or 'window'"),
        ({"plan": {"size": 0}}, "plan: expected blocks of at least one frame"),
        ({"blocks": 0}, "blocks: expected at least 1"),
        ({"blocks": "7"}, "blocks: expected int"),
        ({"size": [8, 7]}, "size: expected height and width"),
    ],
)
def test_a_damaged_index_is_named(change: dict, told: str, tmp_path: Path) -> None:
    BlockVideoPipeline(video(), vae(), size=SIZE).save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps(index | change))
    with pytest.raises(ValueError, match=told) as failed:
        BlockVideoPipeline.from_pretrained(tmp_path)
    assert str(tmp_path) in str(failed.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_autoencoder_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    model = autoencoder(kind)
    write_vae(model, tmp_path)
    same, latents = read_vae(tmp_path), torch.randn(1, 3, 3, 2, 2)
    assert torch.equal(StreamingWanVAE(same).decode(latents)[0], StreamingWanVAE(model).decode(latents)[0])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"colour": 3}))
    with pytest.raises(ValueError, match="expected fields of AutoencoderKLWan, got .*colour"):
        read_vae(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"base_dim": 8}))
    with pytest.raises(ValueError, match="expected the weights of its config"):
        read_vae(tmp_path)


def test_texts_are_padded_with_zeros_and_read_by_themselves() -> None:
    one = encoder()
    states = one(["a red ball", "a red   ball rolls left\n"])
    assert states.shape == (2, 6, SIZES.text_dim)
    assert (states[0, 3:] == 0).all() and (states[0, :3] != 0).any(-1).all() and (states[1, 5] == 0).all()
    assert torch.equal(one(["a red ball rolls left"])[0], one(["a red   ball rolls left\n"])[0])
    calls = []
    read = PromptReader(lambda texts: calls.append(texts) or encode(texts))
    assert torch.equal(read("a"), read("a")) and calls == [["a"]]
    with pytest.raises(ValueError, match="length: expected at least 1"):
        encoder(0)
