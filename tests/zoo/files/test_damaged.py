"""Damaged weights of the zoo: one sentence that names the file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.zoo.architectures.clip import ClipSize, new_clip
from mmspec.zoo.architectures.object_detector import DetectorNetwork, DetectorSize
from mmspec.zoo.files.registry import read
from mmspec.zoo.files.sized import load_clip, load_detector, save_sized
from mmspec.zoo.files.vlm import leave_out_tower
from tests.damaged import ABSURD, FILES, NUMBERS, WRONG, loads_or_refuses, other_fields, refused
from tests.evaluate.tiny_zoo import byte_processor, llava

CLIP = ClipSize(space=8, width=4, layers=(1, 1, 1, 1), text_width=24, text_layers=1, text_heads=2)
JUDGE = DetectorSize(half=8, quarter=8, eighth=8, blocks=1)
MODELS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "clip": (lambda folder: save_sized(new_clip(CLIP), CLIP, folder), load_clip),
    "judge": (lambda folder: save_sized(DetectorNetwork(JUDGE), JUDGE, folder), load_detector),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("damage", [*FILES, *NUMBERS])
@pytest.mark.parametrize("name", MODELS)
def test_a_damaged_model_reports_one_error(name: str, damage: str, tmp_path: Path) -> None:
    save, load = MODELS[name]
    save(tmp_path)
    (FILES | NUMBERS)[damage](tmp_path)
    if damage == "config b'{}'":  # every field has a default
        loads_or_refuses(load, tmp_path)
    else:
        refused(load, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_fields_that_are_no_sizes_are_refused(name: str, tmp_path: Path) -> None:
    save, load = MODELS[name]
    save(tmp_path)
    for _ in other_fields(tmp_path, WRONG):
        refused(load, tmp_path)
    for _ in other_fields(tmp_path, ABSURD):
        loads_or_refuses(load, tmp_path)


def test_loading_seeds_nothing(tmp_path: Path) -> None:
    MODELS["clip"][0](tmp_path)
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        load_clip(tmp_path)
        drawn.append(torch.rand(()).item())
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    "damage", ["truncated", "garbage", "empty", "no weights", "another shape", "config b'{'", "no config"]
)
@pytest.mark.parametrize("name", ["vlm", "vlm/small"])
def test_a_damaged_vlm_reports_one_error(name: str, damage: str, tmp_path: Path) -> None:
    load = partial(read, name)
    llava(1, 4).save_pretrained(tmp_path)
    byte_processor().save_pretrained(tmp_path)
    load(tmp_path)
    FILES[damage](tmp_path)
    refused(load, tmp_path)


def test_a_model_with_its_tower_left_out_reports_the_missing_weights(tmp_path: Path) -> None:
    for name in ("one", "other"):
        llava(1, 4).save_pretrained(tmp_path / name)
        byte_processor().save_pretrained(tmp_path / name)
    assert leave_out_tower(tmp_path / "one", tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"one: expected all weights .* got no .*vision_tower.* more, which would be random"
    ):
        read("vlm", tmp_path / "one")
