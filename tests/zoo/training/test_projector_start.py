"""The closed-form start of a window projector, and the cross-entropy in chunks that it is trained with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmspec.zoo.architectures.llava import PATCH_HEADS
from mmspec.zoo.architectures.smol import WindowProjector
from mmspec.zoo.training.vlm.projector import head_loss, reading_heads, ridge, start_from_words, window_words
from mmspec.zoo.training.vlm.vision_tower import IGNORE
from mmspec.zoo.world.scene import COLORS, KINDS, sample_scene
from tests.zoo import tiny_smol


def test_ridge_finds_the_map_and_its_bias_and_the_penalty_shrinks_the_map_alone() -> None:
    inputs, weight, bias = torch.randn(60, 5) + 3, torch.randn(4, 5), torch.randn(4) * 10
    targets = inputs @ weight.T + bias
    found, offset = ridge(inputs, targets, 0.0)
    assert torch.allclose(found, weight, atol=1e-4) and torch.allclose(offset, bias, atol=1e-3)
    small, offset = ridge(inputs, targets, 1e6)
    assert small.abs().max() < 1e-3 and torch.allclose(offset, targets.mean(0), atol=1e-2)


def test_ridge_minimises_its_objective() -> None:
    inputs, targets, penalty = torch.randn(30, 6), torch.randn(30, 2), 0.1

    def objective(weight: torch.Tensor, bias: torch.Tensor) -> float:
        scale = (inputs - inputs.mean(0)).square().sum(0).mean()
        return float((inputs @ weight.T + bias - targets).square().sum() + penalty * scale * weight.square().sum())

    weight, bias = ridge(inputs, targets, penalty)
    for step in (1e-2, -1e-2):
        assert objective(weight, bias) < objective(weight + step, bias)
        assert objective(weight, bias) < objective(weight, bias + step)


def test_a_start_gives_words_of_the_patch_content() -> None:
    """Patches that hold their properties in plain sight: the start explains random embeddings of them."""
    size = replace(tiny_smol.SIZE, vision=24, inner=64, side=4, window=2, rows=2)
    colors = torch.randint(len(COLORS), (800, 4))  # of windows
    kinds = torch.randint(len(KINDS), (800, 4))
    place = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3])
    labels = {"color": colors[:, place].flatten(), "kind": kinds[:, place].flatten()}
    basis = torch.randn(len(COLORS) + len(KINDS), 24).div(24**0.5)
    shown = F.one_hot(labels["color"], len(COLORS)).float() @ basis[: len(COLORS)]
    features = shown + F.one_hot(labels["kind"], len(KINDS)).float() @ basis[len(COLORS) :]
    heads = reading_heads(features, labels)
    assert (heads["color"](features).argmax(-1) == labels["color"]).float().mean() > 0.9
    table = torch.randn(2, len(KINDS), 64)
    targets = torch.cat([table[0][colors], table[1][kinds]], -1)
    projector = WindowProjector(size)
    explained = start_from_words(projector, heads, features.reshape(800, 16, 24), targets)
    rows = projector(features.reshape(800, 16, 24)).reshape(800, 4, 128)
    assert explained > 0.7
    rest = (rows - targets).square().sum() / (targets - targets.mean((0, 1))).square().sum()
    assert float((1 - rest).detach()) == pytest.approx(explained, abs=1e-4)


def test_unlabelled_patches_teach_no_head() -> None:
    features = torch.randn(40, 6)
    label = torch.randint(len(COLORS), (40,))
    before = reading_heads(features[:30], {"color": label[:30]})["color"].weight
    label[30:] = IGNORE
    assert torch.equal(before, reading_heads(features, {"color": label})["color"].weight)
    assert set(PATCH_HEADS) > {"color"}


def test_windows_are_named_in_the_order_of_their_rows() -> None:
    scene = sample_scene(3)
    words = window_words(scene)
    assert len(words) == 9 and [row[0] for row in words][:3] == ["top left", "top center", "top right"]
    by_cell = {thing.cell: thing for thing in scene.things}
    for cell, (_, look, color, kind) in enumerate(words):
        if cell in by_cell:
            thing = by_cell[cell]
            assert (color, kind) == (thing.color, thing.kind) and look.startswith(thing.size)
        else:
            assert (look, color, kind) == (scene.background.texture, scene.background.tone, "background")


@pytest.mark.parametrize("chunk", (1, 4, 7, 64))
def test_the_chunked_loss_matches_the_dense_loss(chunk: int) -> None:
    head = nn.Linear(8, 30, bias=False).requires_grad_(False)
    targets = torch.randint(30, (11,))
    states = torch.randn(11, 8, requires_grad=True)
    weights = torch.rand(11) + 0.5
    dense = (F.cross_entropy(head(states), targets, reduction="none") * weights).sum() / weights.sum()
    (wanted,) = torch.autograd.grad(3 * dense, states)
    loss, best = head_loss(states, head.weight, targets, weights, chunk)
    (gradient,) = torch.autograd.grad(3 * loss, states)
    assert torch.allclose(loss, dense, atol=1e-6) and torch.allclose(gradient, wanted, atol=1e-6)
    assert torch.equal(best, head(states).argmax(-1))
    assert torch.allclose(head_loss(states, head.weight, targets)[0], F.cross_entropy(head(states), targets), atol=1e-6)
