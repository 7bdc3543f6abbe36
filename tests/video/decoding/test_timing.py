"""The timing model against the published seconds, as far as it says it fits them."""

from __future__ import annotations

import pytest

from mmspec.video import BlockCosts, BlockWork

TARGET, DRAFTER = 97.0, 25.7  # seconds of target-only and draft-only videos: five passes a block


def costs(blocks: int) -> BlockCosts:
    return BlockCosts(TARGET / (5 * blocks), DRAFTER / (5 * blocks))


def seconds(blocks: int, acceptance: float, sync: str) -> float:
    """Seconds of a video whose blocks but the first stand with probability `acceptance`, each for itself.

    Every block is drafted, the first one too, and both models read every block they draw or, as an eager target does, every
    block. A rebuilt target reads before every block it draws, and only then: this is what fits the published figures. A lazy
    one reads in the end all blocks before the last that it draws.
    """
    redrawn = 1 + (blocks - 1) * (1 - acceptance)
    # a block is read where the target draws any behind it; its own closing pass reads the last one it draws
    behind = sum(1 - acceptance ** (blocks - 1 - block) for block in range(blocks - 1))
    reads = {"lazy": 1 + behind, "eager": blocks, "rebuilt": redrawn}[sync]
    return BlockWork(redrawn, blocks, reads, blocks, blocks + redrawn, blocks).seconds(costs(blocks))


def test_the_published_point_is_a_target_that_reads_only_where_it_draws() -> None:
    """tau -0.7: 60.9 s at 73.1 % of the blocks but the first; the number of blocks is not said."""
    assert seconds(9, 0.731, "rebuilt") == pytest.approx(59.7, abs=0.1)
    assert seconds(7, 0.731, "rebuilt") == pytest.approx(61.9, abs=0.1)
    for blocks in (7, 9):
        assert seconds(blocks, 0.731, "rebuilt") == pytest.approx(60.9, rel=0.025)
        assert 72 <= seconds(blocks, 0.731, "eager") <= 74.1
        assert seconds(blocks, 0.731, "rebuilt") < seconds(blocks, 0.731, "lazy") < seconds(blocks, 0.731, "eager")
    assert seconds(7, 0.92, "rebuilt") == pytest.approx(46.4, rel=0.02)  # the point of 2.09x


def test_the_speedup_limits_are_those_of_one_forced_block() -> None:
    for blocks, lazy, eager in ((7, 2.45, 1.73), (9, 2.66, 1.81)):
        assert TARGET / seconds(blocks, 1.0, "rebuilt") == pytest.approx(lazy, abs=0.01)
        assert TARGET / seconds(blocks, 1.0, "eager") == pytest.approx(eager, abs=0.01)
        assert seconds(blocks, 1.0, "lazy") == pytest.approx(seconds(blocks, 1.0, "rebuilt"))


def test_always_rejected_drafts_cost_their_own_time() -> None:
    for sync in ("lazy", "eager", "rebuilt"):
        assert seconds(7, 0.0, sync) == pytest.approx(TARGET + DRAFTER)


@pytest.mark.parametrize("sync", ("lazy", "eager", "rebuilt"))
def test_the_cost_of_a_known_video_is_the_cost_of_its_passes(sync: str) -> None:
    kept = (False, True, False, True, True)
    work = BlockWork.of(kept, (False, *(True,) * 4), sync)
    reads = {"lazy": 2, "eager": 4, "rebuilt": 1}[sync]
    assert work == BlockWork(2, 4, reads, 4, 6, 4)
    prices = BlockCosts(target=10.0, drafter=1.0, decode=0.5, reward=0.25, steps=4, draft_steps=2)
    assert work.seconds(prices) == 10 * (8 + reads) + (8 + 4) + 0.5 * 6 + 0.25 * 4
    alone = BlockWork.of((False,) * 5, (False,) * 5, sync)
    assert alone == BlockWork(5, 0, 4, 0, 5, 0)
    assert BlockWork.of(kept, kept, sync, decodes=False, scored=0) == BlockWork(2, 3, reads, 4, 0, 0)
