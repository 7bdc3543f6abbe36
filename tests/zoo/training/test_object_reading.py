"""Heads that read objects halfway through a video model: what they see, what counts, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmspec.video import CausalWan
from mmspec.zoo.training.objectives import IGNORED_LABEL
from mmspec.zoo.training.video.block_training import block_loss
from mmspec.zoo.training.video.build_target import target_recipe, video_config
from mmspec.zoo.training.video.clips import training_clip
from mmspec.zoo.training.video.object_reading import ObjectReader, middle_states, object_labels, of_last_passes

RECIPE = replace(target_recipe(), config=video_config(1, 16, 2), steps=20, again=10, reading=0.5, reading_share=0.5)


def model() -> CausalWan:
    torch.manual_seed(0)
    return CausalWan(RECIPE.config).requires_grad_(False)


def passed(wan: CausalWan, latents: torch.Tensor) -> None:
    wan(latents, torch.full((1, 3), 500.0), wan.read(torch.ones(1, 4, RECIPE.config.text_dim)))


def test_states_are_those_between_the_layers() -> None:
    wan, latents = model(), torch.ones(1, 8, 3, 8, 8)
    with middle_states(wan) as seen:
        passed(wan, latents)
        wan.blocks[1].ffn.net[2].weight.mul_(2)  # behind them
        passed(wan, latents)
        wan.blocks[0].ffn.net[2].weight.mul_(2)  # before them
        passed(wan, latents)
    assert len(seen) == 3 and seen[0].shape == (1, 3 * 16, 32)
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert torch.equal(of_last_passes(seen, 2), torch.cat(seen[1:], 1))
    passed(wan, latents)
    assert len(seen) == 3


def test_looks_count_where_an_object_is_and_its_place_everywhere() -> None:
    torch.manual_seed(0)
    reader = ObjectReader(32, 2)
    looks, headings = object_labels([training_clip("starts", index, 8) for index in range(2)], "starts", 2)
    states = torch.randn(2, 3 * 16, 32)
    loss, share = reader.loss(states, looks, headings)
    elsewhere = torch.where((looks.flatten(1) == IGNORED_LABEL)[..., None], torch.randn(2, 3 * 16, 32), states)
    moved = reader.loss(elsewhere, looks, headings)[0]
    assert not torch.equal(moved, loss) and 0 <= share < 0.2
    torch.nn.init.zeros_(reader.there.weight)
    torch.testing.assert_close(reader.loss(elsewhere, looks, headings)[0], reader.loss(states, looks, headings)[0])
    nothing = torch.full_like(looks, IGNORED_LABEL)
    torch.nn.init.zeros_(reader.there.bias)
    found, share = reader.loss(states, nothing, nothing)
    assert found.item() == pytest.approx(0.6931, abs=1e-4) and share == 0


def test_heads_read_the_objects_from_the_states() -> None:
    torch.manual_seed(0)
    reader, (looks, headings) = (
        ObjectReader(32, 2),
        object_labels([training_clip("starts", index, 8) for index in range(4)], "starts", 2),
    )
    names = torch.randn(int(looks.max()) + 1, 32)
    states = torch.where(
        (looks.flatten(1) == IGNORED_LABEL)[..., None], torch.zeros(32), names[looks.clamp(0).flatten(1)]
    )
    optimizer = torch.optim.Adam(reader.parameters(), 1e-2)
    for _ in range(60):
        loss, share = reader.loss(states, looks, headings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert share == 1.0 and reader.mix(torch.zeros(32)) @ reader.there.weight[0] + reader.there.bias < 0


def test_heads_count_in_the_second_run_less_and_less() -> None:
    assert [RECIPE.reads(step) for step in (0, 9, 10, 15)] == [0, 0, 0.5, 0]
    assert RECIPE.reads(12) == pytest.approx(0.3) and replace(RECIPE, again=0).reads(12) == 0
    assert [RECIPE.fraction(step) for step in (0, 5, 10, 15)] == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("kind", ["whole", "cuts"])
def test_the_loss_of_the_heads_is_added_to_the_flow_loss(kind: str) -> None:
    wan, encode = model(), lambda texts: torch.ones(len(texts), 4, RECIPE.config.text_dim)
    clips = ([training_clip(kind, 0, 8)], torch.randn(1, 8, 12, 8, 8))
    starts = ([training_clip("starts", index, 8) for index in range(2)], torch.randn(2, 8, 3, 8, 8))
    reader = ObjectReader(32, 2)
    plain, heard = (block_loss(wan, clips, starts, RECIPE, encode, 10, reader=one) for one in (None, reader))
    assert heard[0] > plain[0] + 0.5 * 5 and set(heard[1]) - set(plain[1]) == {"looks"}
    heard[0].backward()
    assert reader.look.weight.grad.abs().sum() > 0
    assert torch.equal(
        block_loss(wan, clips, starts, RECIPE, encode, 2, reader=reader)[0],
        block_loss(wan, clips, starts, RECIPE, encode, 2)[0],
    )
