"""The zoo's judge: a few steps of training, then what a reader of the files gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from mmspec.zoo.files.registry import read
from mmspec.zoo.training.image.build_scorers import DETECTOR_RECIPE, build_detector, cell_labels
from mmspec.zoo.world.pixels import image_arrays, sample_image_scenes
from mmspec.zoo.world.scene import COLORS, SHAPES


def test_cells_are_labelled_where_objects_are() -> None:
    pictures = sample_image_scenes(0, 12)
    presence, color, shape = cell_labels(pictures)
    for row, picture in enumerate(pictures):
        assert (presence[row] == 1).sum() == len(picture.items)
        for item in picture.items:
            cell = (row, int((item.y + item.pixels / 2) / 8), int((item.x + item.pixels / 2) / 8))
            assert presence[cell] == 1
            assert color[cell] == tuple(COLORS).index(item.color) and shape[cell] == SHAPES.index(item.shape)


def test_the_judge_trains_and_its_files_load(tmp_path: Path) -> None:
    card = build_detector(tmp_path, tmp_path / "work", replace(DETECTOR_RECIPE, steps=2, batch=4), measured=4)
    assert card["parameters"] <= 150_000 and 0 <= card["evaluation"]["objects_right"] <= 1
    judge = read("image_judge", tmp_path)
    arrays = image_arrays(sample_image_scenes(0, 3))
    images = [Image.fromarray(array) for array in arrays]
    assert judge.read(images) == judge.read(torch.from_numpy(arrays))
