"""Blocks lie end to end."""

from __future__ import annotations

import pytest

from mmspec.video import BlockPlan


@pytest.mark.parametrize("plan", (BlockPlan(3), BlockPlan(3, first=1), BlockPlan(2, first=5)))
def test_every_frame_is_of_one_block(plan: BlockPlan) -> None:
    sizes = plan.sizes(0, 6)
    assert [plan.start(block) for block in range(6)] == [sum(sizes[:block]) for block in range(6)]
    for frames in range(1, sum(sizes)):
        cut = plan.cut(frames)
        assert sum(cut) == frames and cut[:-1] == sizes[: len(cut) - 1] and cut[-1] <= sizes[len(cut) - 1]
    assert plan.cut(0) == ()


def test_blocks_without_frames_are_refused() -> None:
    for size, first in ((0, None), (3, 0)):
        with pytest.raises(ValueError, match="plan: expected blocks of at least one frame"):
            BlockPlan(size, first)
