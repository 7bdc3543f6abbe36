"""What autoencoders are trained on: pixels that count more than others, and where the objects of a clip are."""

from __future__ import annotations

import torch

from mmspec.zoo.training.objectives import reconstruction_loss
from mmspec.zoo.training.video.build_vae import VideoVaeRecipe
from mmspec.zoo.training.video.clips import Clip, clip_filled, clip_pixels
from mmspec.zoo.world.video import sample_video_scene

RECIPE = VideoVaeRecipe(divergence=0.0, edges=0.0)


def loss(made: torch.Tensor, counts: torch.Tensor | None) -> float:
    still = torch.zeros(1)
    return float(reconstruction_loss(made, torch.zeros_like(made), still, still, RECIPE, 0, counts)[0])


def test_a_gap_counts_as_much_as_its_pixel_does() -> None:
    made, counts = torch.zeros(1, 3, 2, 8, 8), torch.ones(1, 1, 2, 8, 8)
    counts[..., :4] = 9.0  # of a mean of 5
    left, right = made.clone(), made.clone()
    left[..., 0], right[..., 7] = 1.0, 1.0
    assert loss(left, None) == loss(right, None) == 2 / 8  # L1 and squares
    assert abs(loss(left, counts) - 9 / 5 * 2 / 8) < 1e-6 and abs(loss(right, counts) - 1 / 5 * 2 / 8) < 1e-6


def test_differences_in_space_count_too() -> None:
    recipe, still = VideoVaeRecipe(divergence=0.0, squares=0.0, edges=1.0, edges_steps=1), torch.zeros(1)
    pixels, counts = torch.zeros(1, 3, 1, 8, 8), torch.ones(1, 1, 1, 8, 8)
    counts[..., :4] = 9.0
    found = []
    for column in (1, 6):
        made = pixels.clone()
        made[..., column] = 0.01
        whole = reconstruction_loss(made, pixels, still, still, recipe, 1, counts)[0]
        flat = reconstruction_loss(made, pixels, still, still, VideoVaeRecipe(divergence=0.0, squares=0.0), 0, counts)[
            0
        ]
        found.append(float(whole - flat))
    assert found[0] > 8 * found[1] > 0


def test_objects_are_marked_in_clips_that_begin_later_and_cut() -> None:
    scene, other = (
        next(entry for entry in map(sample_video_scene, range(seed, seed + 50)) if len(entry.movers) == 1)
        for seed in (0, 100)
    )
    clip = Clip(scene, first=3, then=other, cut=4)
    filled, pixels = clip_filled([clip], 6)[0, 0], clip_pixels([clip], 6)[0]
    for frame, (shown, at) in enumerate([(scene, 3), (scene, 4), (scene, 5), (scene, 6), (other, 0), (other, 1)]):
        (mover,) = shown.movers
        x, y = mover.at(at)
        assert filled[frame].sum() == mover.pixels**2 and bool(
            filled[frame, y : y + mover.pixels, x : x + mover.pixels].all()
        )
    for frame in (0, 1, 2, 4):  # of one scene, whose background stays
        moved = (pixels[:, frame] != pixels[:, frame + 1]).any(0)
        assert moved.sum() > 20 and not bool((moved & (filled[frame : frame + 2].amax(0) == 0)).any())
