"""Damaged files of pipelines of continuous tokens: one sentence that names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmspec.imagegen import ContinuousARPipeline, MARPipeline, kl_from_state_dict, mar_from_state_dict
from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer
from tests.damaged import ABSURD, FILES, WRONG, loads_or_refuses, other_fields, refused
from tests.imagegen.continuous.tiny import autoencoder, pipeline, redrawn

CAUSAL = CausalConfig(
    grid=4, token_dim=3, width=8, depth=1, heads=2, class_num=3, head_depth=1, head_width=8, head_steps=3
)
KINDS: dict[str, tuple[Callable[[], Any], type]] = {
    "mar": (lambda: pipeline(pixels=True), MARPipeline),
    "causal": (lambda: ContinuousARPipeline(redrawn(CausalTransformer(CAUSAL)), autoencoder()), ContinuousARPipeline),
}
every_part = pytest.mark.parametrize(
    ("kind", "part"), [("mar", "transformer"), ("mar", "vae"), ("causal", "transformer")]
)


def saved(kind: str, folder: Path) -> Callable[[Path], Any]:
    made, pipe = KINDS[kind]
    made().save_pretrained(folder)
    return pipe.from_pretrained


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("damage", FILES)
@every_part
def test_a_damaged_part_reports_one_error(kind: str, part: str, damage: str, tmp_path: Path) -> None:
    load = saved(kind, tmp_path)
    FILES[damage](tmp_path / part)
    if damage == "config b'{}'":  # much follows from the weights
        loads_or_refuses(load, tmp_path)
    else:
        refused(load, tmp_path)


@pytest.mark.default_cells("causal-transformer")
@every_part
def test_fields_that_are_no_sizes_are_refused(kind: str, part: str, tmp_path: Path) -> None:
    load = saved(kind, tmp_path)
    for name, value in other_fields(tmp_path / part, WRONG):
        if (name, value) != ("num_sampling_steps", "wide"):  # a form of its own, which the head refuses
            refused(load, tmp_path)
    for name, _ in other_fields(tmp_path / part, ABSURD):
        if name.endswith(("_depth", "_embed_dim", "class_num", "img_size", "buffer_size", "num_res_blocks", "width")):
            refused(load, tmp_path)
        else:
            loads_or_refuses(load, tmp_path)


@pytest.mark.parametrize("read", [mar_from_state_dict, kl_from_state_dict])
def test_a_file_of_another_model_is_named(read: Callable, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"z_proj.weight": torch.ones(()), "post_quant_conv.weight": torch.ones(2)}, path)
    refused(read, path)


@pytest.mark.parametrize(
    "fields",
    [{"guidance_scale": "high"}, {"guidance_schedule": 3}, {"guidance_schedule": "cosine"}, {"num_iter": 2.5}, {"num_iter": 0},
     {"guidance_scale": float("nan")}, {"guidance_scale": -1}, {"_class_name": ["x"]}, {"vae": 3}],
)  # fmt: skip
def test_an_index_of_other_types_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    load = saved("mar", tmp_path)
    known = json.loads((tmp_path / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**known, **fields}))
    refused(load, tmp_path)


@pytest.mark.parametrize(
    "fields", [{"guidance_scale": "high"}, {"_class_name": "MARPipeline"}, {"guidance_scale": -1.0}]
)
def test_a_causal_index_of_other_types_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    load = saved("causal", tmp_path)
    known = json.loads((tmp_path / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**known, **fields}))
    refused(load, tmp_path)
