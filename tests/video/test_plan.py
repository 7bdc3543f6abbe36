"""Blocks lie end to end."""

from __future__ import annotations

import pytest

from mmspec.video import BlockPlan


@pytest.mark.parametrize("plan", (BlockPlan(3), BlockPlan(3, first=1), BlockPlan(2, first=5), BlockPlan(3, (1, 2, 4))))
def test_every_frame_belongs_to_one_block(plan: BlockPlan) -> None:
    sizes = plan.sizes(0, 6)
    assert [plan.start(block) for block in range(6)] == [sum(sizes[:block]) for block in range(6)]
    for frames in range(1, sum(sizes)):
        cut = plan.cut(frames)
        assert sum(cut) == frames and cut[:-1] == sizes[: len(cut) - 1] and cut[-1] <= sizes[len(cut) - 1]
    assert plan.cut(0) == ()


def test_pixel_frames_before_a_block_are_those_that_its_latents_stand_for() -> None:
    """The first latent of a video stands for one frame; where blocks stand apart each of them is a video."""
    assert [BlockPlan(3).shown(block, 4) for block in range(4)] == [0, 9, 21, 33]
    assert [BlockPlan(3, first=1).shown(block, 4) for block in range(4)] == [0, 1, 13, 25]
    assert [BlockPlan(9, apart=True).shown(block, 4) for block in range(4)] == [0, 33, 66, 99]


def test_a_list_of_first_blocks_may_come_from_a_file() -> None:
    plan = BlockPlan(3, [1, 3, 3, 2])
    assert plan == BlockPlan(3, (1, 3, 3, 2)) and hash(plan) and plan.sizes(0, 6) == (1, 3, 3, 2, 3, 3)
    assert (
        str(plan) == "1, 3, 3, 2, then 3 latent frames per block" and str(BlockPlan(2)) == "2 latent frames per block"
    )


def test_blocks_without_frames_are_refused() -> None:
    for size, first in ((0, None), (3, 0), (3, (1, 0))):
        with pytest.raises(ValueError, match="plan: expected blocks of at least one frame"):
            BlockPlan(size, first)
