from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmspec.zoo import load, names
from mmspec.zoo.shared_tower import leave_out_tower
from mmspec.zoo.training import Plan, train


def _problem():
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)

    def loss_of(step):
        drawn = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return (layer(drawn) - drawn[:, :2]).square().mean(), {}

    return layer, loss_of


def test_resumed_training_equals_uninterrupted(tmp_path):
    plan = Plan(steps=12, lr=1e-2, warmup=3, log_every=4)
    whole, loss_of = _problem()
    train(whole, loss_of, plan, tmp_path / "whole", "t")

    cut, loss_of = _problem()
    with pytest.raises(KeyboardInterrupt):
        train(cut, _stop_at(loss_of, 7), Plan(steps=12, lr=1e-2, warmup=3, save_every_s=0.0), tmp_path / "cut", "t")
    cut, loss_of = _problem()
    train(cut, loss_of, plan, tmp_path / "cut", "t")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def _stop_at(loss_of, last):
    def stopping(step):
        if step == last:
            raise KeyboardInterrupt
        return loss_of(step)

    return stopping


def test_a_finished_run_returns_its_figures_again(tmp_path):
    plan = Plan(steps=4, lr=1e-2, warmup=1, log_every=2)
    layer, loss_of = _problem()
    first = train(layer, loss_of, plan, tmp_path, "t")
    again = train(layer, loss_of, plan, tmp_path, "t")
    assert again["loss"] == pytest.approx(first["loss"], abs=1e-4)


def test_a_loss_that_is_not_finite_stops(tmp_path):
    layer, loss_of = _problem()
    with pytest.raises(ValueError, match="finite loss"):
        train(layer, lambda step: (loss_of(step)[0] * float("nan"), {}), Plan(steps=2, lr=1e-2), tmp_path, "t")


def test_unknown_names_are_listed():
    assert {"vlm", "vlm/small"} <= set(names())
    with pytest.raises(ValueError, match="vlm/small"):
        load("nothing")


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
