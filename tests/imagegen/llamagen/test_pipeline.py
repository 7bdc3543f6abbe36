"""Pipelines in folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.imagegen import LlamaGenPipeline
from mmspec.imagegen.base_pipeline import to_pil
from mmspec.imagegen.llamagen.captions import CaptionEncoder
from tests.imagegen.llamagen.tiny import CAPTION, CLASS, text_encoder, tokenizer_model, transformer, word_tokenizer


def caption_pipeline() -> LlamaGenPipeline:
    captions = CaptionEncoder(text_encoder(), word_tokenizer(), 6, cleaned=False)
    return LlamaGenPipeline(transformer(CAPTION), tokenizer_model(), captions, guidance_scale=2.0, top_k=5)


def test_a_caption_pipeline_comes_back(tmp_path: Path) -> None:
    pipe = caption_pipeline()
    pipe.save_pretrained(tmp_path / "pipe")
    names = {p.relative_to(tmp_path / "pipe").as_posix() for p in (tmp_path / "pipe").rglob("*") if p.is_file()}
    assert {
        "model_index.json",
        "transformer/config.json",
        "transformer/model.safetensors",
        "vq/config.json",
        "vq/model.safetensors",
        "text_encoder/model.safetensors",
        "tokenizer/tokenizer.json",
    } <= names
    again = LlamaGenPipeline.from_pretrained(tmp_path / "pipe")
    assert (again.guidance_scale, again.top_k, again.image_size) == (2.0, 5, 8) and not again.model.captions.cleaned
    texts = ["a red circle", "the blue square on the left"]
    one, two = (p(texts, seed=3) for p in (pipe, again))
    assert torch.equal(one.tokens, two.tokens)
    assert [x.tobytes() for x in one.images] == [x.tobytes() for x in two.images]
    assert again.to(dtype=torch.bfloat16).model.dtype == torch.bfloat16
    assert again("a red circle", seed=0).images[0].size == (8, 8)


def test_a_class_pipeline_comes_back_without_an_index(tmp_path: Path) -> None:
    pipe = LlamaGenPipeline(transformer(CLASS), tokenizer_model())
    pipe.save_pretrained(tmp_path)
    (tmp_path / "model_index.json").unlink()
    again = LlamaGenPipeline.from_pretrained(str(tmp_path), dtype=torch.float32)
    assert again.guidance_scale == 4.0
    assert torch.equal(pipe([1, 4], seed=3, pixels=False).tokens, again([1, 4], seed=3, pixels=False).tokens)


def test_a_pipeline_of_videos_comes_back_and_decodes_each_frame_on_its_own(tmp_path: Path) -> None:
    pipe = LlamaGenPipeline(transformer(replace(CLASS, frames=3, time_pairs=2)), tokenizer_model())
    pipe.save_pretrained(tmp_path)
    again = LlamaGenPipeline.from_pretrained(tmp_path)
    one, two = (p([1, 4], seed=3) for p in (pipe, again))
    assert torch.equal(one.tokens, two.tokens) and one.tokens.shape == (2, 48) and again.image_size == 8
    assert (one.arrays() == two.arrays()).all() and one.arrays().shape == (2, 3, 8, 8, 3)
    frame = to_pil(pipe.model.vq.decode_code(one.tokens[1:, 16:32]).add(1).div(2))[0]
    assert frame.tobytes() == one.videos[1][1].tobytes()


def test_parts_of_an_earlier_pipeline_in_the_folder_do_not_come_back(tmp_path: Path) -> None:
    caption_pipeline().save_pretrained(tmp_path)
    LlamaGenPipeline(transformer(CAPTION)).save_pretrained(tmp_path)
    again = LlamaGenPipeline.from_pretrained(tmp_path)
    assert again.model.vq is None and again.model.captions is None and again.image_size is None
    (tmp_path / "model_index.json").unlink()
    whole = LlamaGenPipeline.from_pretrained(tmp_path)
    assert whole.model.vq is not None and whole.model.captions is not None


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "expected a LlamaGenPipeline, got 'FluxPipeline'"),
        (
            "transformer/config.json",
            {"block_size": 64},
            r"image_size: expected 16 \(8 tokens of 2 pixels per side\), got 8",
        ),
        (
            "transformer/config.json",
            {"num_classes": 9},
            r"embedding_table\.weight of shape \(6, 32\) instead of \(10, 32\)",
        ),
        ("vq/config.json", {"codebook_size": 32}, r"quantize\.embedding\.weight of shape"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path, file: str, fields: dict, message: str) -> None:
    LlamaGenPipeline(transformer(CLASS), tokenizer_model()).save_pretrained(tmp_path)
    change(tmp_path / file, **fields)
    with pytest.raises(ValueError, match=message):
        LlamaGenPipeline.from_pretrained(tmp_path)


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a folder or a hub id"):
        LlamaGenPipeline.from_pretrained(tmp_path / "no" / "such")
    with pytest.raises(ValueError, match="got none there"):
        LlamaGenPipeline.from_pretrained(tmp_path)
    LlamaGenPipeline(transformer(CLASS)).save_pretrained(tmp_path)
    change(tmp_path / "model_index.json", vq=["mmspec", "VQModel"])
    with pytest.raises(ValueError, match="vq/model.safetensors: expected"):
        LlamaGenPipeline.from_pretrained(tmp_path)
    (tmp_path / "transformer" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="expected JSON"):
        LlamaGenPipeline.from_pretrained(tmp_path)


def test_other_caption_encoders_are_not_saved(tmp_path: Path) -> None:
    pipe = LlamaGenPipeline(transformer(CAPTION), captions=lambda texts: (torch.zeros(len(texts), 6, 8), None))
    with pytest.raises(ValueError, match="captions: expected a CaptionEncoder"):
        pipe.save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
