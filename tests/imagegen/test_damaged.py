"""Damaged files of image models, drafters and upsamplers: one sentence that names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmspec.imagegen import LatentUpsampler, LlamaGenPipeline, load_drafter
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict, vq_from_state_dict
from tests.damaged import ABSURD, FILES, NUMBERS, WRONG, loads_or_refuses, other_fields, refused
from tests.evaluate.tiny_images import captioned, tiny_image_zoo
from tests.imagegen.llamagen.tiny import CAPTION

PARTS = ("transformer", "vq", "text_encoder")


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    captioned(CAPTION).save_pretrained(tmp_path / "pipe")
    return tmp_path / "pipe"


# published text encoders come with their decoders: tensors too many are no damage there
# the default lane runs every second damage, of every second part the others
DAMAGED = [
    pytest.param(part, damage, marks=[pytest.mark.whole] if (row + column) % 2 else [])
    for row, part in enumerate(PARTS)
    for column, damage in enumerate(FILES)
    if (part, damage) != ("text_encoder", "a tensor too many")
]


@pytest.mark.parametrize(("part", "damage"), DAMAGED)
def test_a_damaged_part_of_a_pipeline_reports_one_error(part: str, damage: str, pipeline: Path) -> None:
    FILES[damage](pipeline / part)
    if damage == "config b'{}'":  # sizes of a transformer follow from its weights
        loads_or_refuses(LlamaGenPipeline.from_pretrained, pipeline)
    else:
        refused(LlamaGenPipeline.from_pretrained, pipeline)


@pytest.mark.default_cells("transformer")
@pytest.mark.parametrize("part", PARTS[:2])
def test_fields_of_a_pipeline_that_are_no_sizes_are_refused(part: str, pipeline: Path) -> None:
    for _ in other_fields(pipeline / part, WRONG):
        refused(LlamaGenPipeline.from_pretrained, pipeline)
    for name, _ in other_fields(pipeline / part, ABSURD):
        if name in ("dim", "n_layer", "block_size", "codebook_size", "ch", "num_res_blocks"):
            refused(LlamaGenPipeline.from_pretrained, pipeline)
        else:
            loads_or_refuses(LlamaGenPipeline.from_pretrained, pipeline)


def upsampler() -> LatentUpsampler:
    return LatentUpsampler.of(torch.randn(6, 4), width=8, blocks=1)


SAVED: dict[str, tuple[Callable[[], Any], Callable[[Path], Any]]] = {
    "eagle": (lambda: tiny_image_zoo()["t2i/eagle"], load_drafter),
    "upsampler": (upsampler, LatentUpsampler.from_pretrained),
}


@pytest.mark.parametrize("damage", [*FILES, *NUMBERS])
@pytest.mark.parametrize("kind", SAVED)
def test_a_damaged_drafter_or_upsampler_reports_one_error(kind: str, damage: str, tmp_path: Path) -> None:
    made, load = SAVED[kind]
    made().save_pretrained(tmp_path)
    load(tmp_path)
    (FILES | NUMBERS)[damage](tmp_path)
    refused(load, tmp_path)


@pytest.mark.parametrize("kind", SAVED)
def test_fields_of_a_drafter_that_are_no_sizes_are_refused(kind: str, tmp_path: Path) -> None:
    made, load = SAVED[kind]
    made().save_pretrained(tmp_path)
    for _ in other_fields(tmp_path, WRONG):
        refused(load, tmp_path)
    for _ in other_fields(tmp_path, ABSURD):
        loads_or_refuses(load, tmp_path)


@pytest.mark.parametrize("read", [llamagen_from_state_dict, vq_from_state_dict])
def test_a_file_of_another_model_is_named(read: Callable, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"norm.weight": torch.ones(()), "quant_conv.weight": torch.ones(2), "layers.0.w": torch.ones(1)}, path)
    refused(read, path)


@pytest.mark.parametrize(
    "fields",
    [
        {"guidance_scale": "high"},
        {"top_k": "x"},
        {"top_k": 2.5},
        {"image_size": "large"},
        {"guidance_scale": float("nan")},
        {"clean_captions": 3},
        {"_class_name": ["x"]},
        {"vq": 3},
    ],
)
def test_an_index_of_other_types_is_refused(fields: dict[str, Any], pipeline: Path) -> None:
    known = json.loads((pipeline / "model_index.json").read_text())
    (pipeline / "model_index.json").write_text(json.dumps({**known, **fields}))
    refused(LlamaGenPipeline.from_pretrained, pipeline)
