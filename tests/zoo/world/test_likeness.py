"""Likeness of single frames: what was rendered is like itself wherever it is, and unlike what it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmspec.zoo.world.scene import COLORS, SHAPES
from mmspec.zoo.world.tracking import likeness
from mmspec.zoo.world.video import HELD_OUT, render_frames, sample_video_scene

SCENES = [sample_video_scene(HELD_OUT + number) for number in range(24)]


def test_rendered_frames_match_their_own_objects_at_every_place() -> None:
    found = np.stack([likeness(render_frames(scene, 12), scene.movers) for scene in SCENES])
    assert found.min() > 0.6 and found.mean() > 0.85 and found.std(1).max() < 0.12


def test_another_shape_and_another_color_are_distinguished() -> None:
    gaps = []
    for scene in SCENES:
        mover = scene.movers[0]
        if mover.kind not in SHAPES:
            continue
        frames = render_frames(replace(scene, movers=(mover,)), 4)
        own = likeness(frames, [mover]).mean()
        gaps += [own - likeness(frames, [replace(mover, kind=kind)]).mean() for kind in SHAPES if kind != mover.kind]
        absent = next(color for color in COLORS if color != mover.color)
        assert likeness(frames, [replace(mover, color=absent)]).max() == 0
    assert np.mean(gaps) > 0.2 and np.mean(np.array(gaps) > 0) > 0.97


def test_half_of_the_objects_counts_half_and_no_objects_are_refused() -> None:
    scene = next(scene for scene in SCENES if len(scene.movers) == 2)
    shown = render_frames(replace(scene, movers=scene.movers[:1]), 3)
    both, one = likeness(shown, scene.movers), likeness(shown, scene.movers[:1])
    np.testing.assert_allclose(both, one / 2)
    with pytest.raises(ValueError, match="at least one object"):
        likeness(shown, [])
