"""Two models with one vision tower."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

from mmspec.zoo.files.shared_tower import leave_out_tower


def test_a_tower_that_another_file_holds_is_left_out_and_found_again(tmp_path):
    tensors = {"vision_tower.a": torch.randn(3), "language_model.b": torch.randn(2)}
    for name, tower in (("first", 0.0), ("same", 0.0), ("other", 1.0)):
        (tmp_path / name).mkdir()
        moved = {**tensors, "vision_tower.a": tensors["vision_tower.a"] + tower}
        save_file(moved, tmp_path / name / "model.safetensors")
    assert leave_out_tower(tmp_path / "same", tmp_path / "first")
    assert not leave_out_tower(tmp_path / "other", tmp_path / "first")
    assert set(load_file(tmp_path / "same" / "model.safetensors")) == {"language_model.b"}
    assert len(load_file(tmp_path / "other" / "model.safetensors")) == 2
