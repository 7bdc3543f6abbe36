"""What share of each latent objects fill and whose they are, against pixels counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.zoo.training.objectives import IGNORED_LABEL
from mmspec.zoo.training.video.clips import PLAN, Kind, TrainingClip, blocks_of, pixel_frames, training_clip
from mmspec.zoo.training.video.object_reading import object_coverage, object_labels
from mmspec.zoo.world.video import DIRECTIONS


def counted(one: TrainingClip, kind: Kind, side: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[movers of all scenes, F, side, side]: of every pixel frame on its own, then over the four frames of a latent; the first
    has one. Beside it each mover's look [movers] and heading [movers, F]."""
    frames, latents = pixel_frames(blocks_of(kind)), PLAN.start(blocks_of(kind))
    starts = [0, *(pixel_frames(block) for block, _ in one.scenes[1:]), frames]
    filled, looks, ways = [], [], []
    for (_, scene), first, stop in zip(one.scenes, starts, starts[1:], strict=False):
        for mover in scene.movers:
            own = np.zeros((frames, 64, 64))
            for frame in range(first, stop):
                x, y = mover.at(frame - first)
                own[frame, y : y + mover.pixels, x : x + mover.pixels] = 1
            cells = own.reshape(frames, side, 64 // side, side, 64 // side).mean((2, 4))
            filled.append(np.stack([cells[max(4 * n - 3, 0) : 4 * n + 1].mean(0) for n in range(latents)]))
            shown = [max(4 * n - 3, 0) - first for n in range(latents)]
            ways.append([list(DIRECTIONS).index(mover.heading(at)) if at >= 0 else IGNORED_LABEL for at in shown])
            looks.append(mover.look)
    return np.stack(filled), np.array(looks), np.array(ways)


@pytest.mark.parametrize("kind", ["whole", "starts", "cuts"])
def test_objects_are_where_they_are_drawn(kind: Kind) -> None:
    members = [training_clip(kind, index, 8) for index in range(12)]
    assert {len(member.scenes[0][1].movers) for member in members} == {1, 2}
    found = object_coverage(members, kind).numpy()
    np.testing.assert_allclose(found, np.stack([counted(member, kind)[0].sum(0) for member in members]), atol=1e-6)
    assert 0.05 < found.mean() < 0.3 and found.max() == 1


@pytest.mark.parametrize("kind", ["whole", "starts", "cuts"])
def test_squares_are_held_by_the_object_that_fills_most_of_them(kind: Kind) -> None:
    members = [training_clip(kind, index, 8) for index in range(12)]
    looks, headings = object_labels(members, kind, 2)
    assert looks.shape == headings.shape == (12, PLAN.start(blocks_of(kind)), 4, 4)
    for row, member in enumerate(members):
        shares, own, ways = counted(member, kind, 4)
        there = shares.max(0) >= 0.25
        which, frame = shares.argmax(0), np.arange(shares.shape[1])[:, None, None]
        np.testing.assert_array_equal(looks[row].numpy(), np.where(there, own[which], IGNORED_LABEL))
        np.testing.assert_array_equal(headings[row].numpy(), np.where(there, ways[which, frame], IGNORED_LABEL))
    assert 0.05 < float((looks != IGNORED_LABEL).float().mean()) < 0.4
