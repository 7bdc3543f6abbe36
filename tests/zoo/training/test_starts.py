"""Objects start where white noise has them: legal places, found again in the noise, and nothing else about a scene changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmspec.zoo.training.video.clips import channel_of, coupled_channels, coupling_noise, place_movers, spans
from mmspec.zoo.world.scene import COLORS
from mmspec.zoo.world.video import STEADY, VideoScene, sample_video_scene

CHANNELS = 8


def pairs(count: int) -> list[tuple[VideoScene, VideoScene, torch.Tensor]]:
    drawn = [(sample_video_scene(seed), coupling_noise(seed, CHANNELS, 3)) for seed in range(count)]
    return [(scene, place_movers(scene, noise, spans(0)), noise) for scene, noise in drawn]


def test_only_starts_change_and_they_are_such_as_scenes_have() -> None:
    for scene, made, _ in pairs(60):
        assert made.background == scene.background
        for before, after in zip(scene.movers, made.movers, strict=True):
            assert replace(after, x=before.x, y=before.y) == before
            assert 0 <= after.x <= after.room and 0 <= after.y <= after.room
            assert not after.bounces(STEADY + 1)
        if len(made.movers) == 2:
            one, other = made.movers
            across = one.dx != 0
            halves = [(m.y if across else m.x, m.pixels) for m in (one, other)]
            assert sorted(at // 32 for at, _ in halves) == [0, 1] and all(at % 32 + side <= 32 for at, side in halves)


def test_the_noise_is_high_where_an_object_is_and_only_in_its_channel() -> None:
    own, others = [], []
    for _, made, noise in pairs(80):
        for mover in made.movers:
            for frame, (first, last) in enumerate(spans(0)):
                x, y = np.mean([mover.at(number) for number in range(first, last)], axis=0) + mover.pixels / 2
                row, column = (int(min(at // 8, 7)) for at in (y, x))
                own.append(float(noise[channel_of(mover, CHANNELS), frame, row, column]))
                others += [
                    float(noise[c, frame, row, column])
                    for c in set(range(CHANNELS)) - set(coupled_channels(made, CHANNELS))
                ]
    assert np.mean(own) > 0.6 and abs(np.mean(others)) < 0.1


def test_noise_is_drawn_before_the_scene_and_kept_as_it_is() -> None:
    noise = coupling_noise(5, CHANNELS, 3)
    before = noise.clone()
    place_movers(sample_video_scene(5), noise, spans(0))
    assert torch.equal(noise, before) and torch.equal(noise, coupling_noise(5, CHANNELS, 3))
    white = torch.stack([coupling_noise(seed, CHANNELS, 3) for seed in range(100)])
    assert float(white.mean()) == pytest.approx(0, abs=0.01) and float(white.std()) == pytest.approx(1, abs=0.01)


def test_every_color_has_a_channel_of_its_own() -> None:
    movers = [mover for seed in range(200) for mover in sample_video_scene(seed).movers]
    assert len({(mover.color, channel_of(mover, CHANNELS)) for mover in movers}) == len(COLORS) == CHANNELS
