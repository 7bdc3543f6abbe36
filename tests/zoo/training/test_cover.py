"""What share of each latent objects fill, against pixels counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.zoo.training.films.clip_sets import PLAN, Kind, Member, blocks_of, member, pixel_frames
from mmspec.zoo.training.films.cover import cover


def counted(one: Member, kind: Kind) -> np.ndarray:
    """[F, 8, 8]: of every pixel frame on its own, then over the four frames of a latent; the first has one."""
    frames = pixel_frames(blocks_of(kind))
    filled = np.zeros((frames, 64, 64))
    starts = [0, *(pixel_frames(block) for block, _ in one.scenes[1:]), frames]
    for (_, scene), first, stop in zip(one.scenes, starts, starts[1:], strict=False):
        for frame in range(first, stop):
            for mover in scene.movers:
                x, y = mover.at(frame - first)
                filled[frame, y : y + mover.pixels, x : x + mover.pixels] = 1
    cells = filled.reshape(frames, 8, 8, 8, 8).mean((2, 4))
    return np.stack([cells[max(4 * n - 3, 0) : 4 * n + 1].mean(0) for n in range(PLAN.start(blocks_of(kind)))])


@pytest.mark.parametrize("kind", ["whole", "starts", "cuts"])
def test_objects_are_where_they_are_drawn(kind: Kind) -> None:
    members = [member(kind, index, 8) for index in range(12)]
    assert {len(one.scenes[0][1].movers) for one in members} == {1, 2}
    found = cover(members, kind).numpy()
    np.testing.assert_allclose(found, np.stack([counted(one, kind) for one in members]), atol=1e-6)
    assert 0.05 < found.mean() < 0.3 and found.max() == 1
