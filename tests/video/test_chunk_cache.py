"""A pass stages, a commit keeps, and nothing else changes what a cache holds."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from mmspec.video import ChunkCache
from tests.video.tiny import counters

TOKENS, LAYERS = 2, 2


def written(numbers: list[int], layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values that say which frame they are of: [1, 1, S, 1]."""
    key = torch.tensor(numbers).float().repeat_interleave(TOKENS)[None, None, :, None]
    return key + 100 * layer, -key - 100 * layer


def run(cache: ChunkCache, sizes: tuple[int, ...], first: int, layers: int = LAYERS) -> list[list[list[int]]]:
    """A pass of the coming frames; per layer and block, the frames it attended to."""
    cache.begin(sizes)
    seen = []
    for layer in range(layers):
        spans = cache.write(layer, *written(list(range(first, first + sum(sizes))), layer))
        assert all(torch.equal(span.keys, -span.values) for span in spans)
        seen.append([[int(x) - 100 * layer for x in span.keys[0, 0, ::TOKENS, 0]] for span in spans])
    return seen


def expected(window: int | None, sinks: int, sizes: tuple[int, ...]) -> list[list[int]]:
    """The frames each block sees, by doing it: frames come in, and the oldest behind the sinks go."""
    held, seen, start = [], [], 0
    for size in sizes:
        held += range(start, start + size)
        while window is not None and len(held) > window:
            held.pop(sinks)
        seen.append(list(held))
        start += size
    return seen


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (3, 0), (4, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize("sizes", [*product((1, 2), repeat=4), (2, 2, 2, 2, 2, 2)])
def test_a_block_sees_the_sinks_and_the_latest_frames(window: int | None, sinks: int, sizes: tuple[int, ...]) -> None:
    wanted = expected(window, sinks, sizes)
    one_by_one, at_once = ChunkCache(window, sinks), ChunkCache(window, sinks)
    for number, size in enumerate(sizes):
        for _ in range(3):  # passing over a block again drops nothing more
            seen = run(one_by_one, (size,), sum(sizes[:number]))
        assert seen == [[wanted[number]]] * LAYERS
        assert counters(one_by_one, TOKENS) == [TOKENS * sum(sizes[: number + 1]), TOKENS * len(wanted[number])]
        one_by_one.commit()
        assert one_by_one.kept == len(wanted[number])
    assert run(at_once, sizes, 0) == [wanted] * LAYERS
    at_once.commit()
    assert at_once.frames == one_by_one.frames == sum(sizes)
    for layer in range(LAYERS):
        assert all(map(torch.equal, at_once.layer(layer), one_by_one.layer(layer)))


@pytest.mark.parametrize(("window", "sinks"), [(4, 1), (5, 2), (4, 0), (None, 0)])
@pytest.mark.parametrize("sizes", [(2, 1, 2, 2, 1), (2, 2, 2, 2)])
def test_sinks_follow_the_window_by_the_frames_that_were_dropped(
    window: int | None, sinks: int, sizes: tuple[int, ...]
) -> None:
    wanted = expected(window, sinks, sizes)
    gaps = [0 if len(seen) <= sinks or not sinks else seen[sinks] - sinks for seen in wanted]
    for at_once in (1, 2, len(sizes)):
        cache, found = ChunkCache(window, sinks, "window"), []
        for start in range(0, len(sizes), at_once):
            group = sizes[start : start + at_once]
            cache.begin(group)
            frames = list(range(cache.frames, cache.frames + sum(group)))
            found += [(span.sunk // TOKENS, span.moved) for span in cache.write(0, *written(frames, 0))]
            cache.write(1, *written(frames, 1))
            cache.commit()
        assert [moved if sunk else 0 for sunk, moved in found] == gaps
        assert all(sunk in (0, sinks) for sunk, _ in found)


def test_frames_that_are_skipped_count_as_dropped() -> None:
    cache = ChunkCache(4, 1, "window")
    run(cache, (1,), 0)
    cache.commit()
    cache.skip(7)
    cache.begin((2,))
    (span,) = cache.write(0, *written([7, 8], 0))
    assert (cache.frames, cache.kept, span.sunk, span.moved) == (7, 1, TOKENS, 6)
    with pytest.raises(ValueError, match="frames: expected a position from 7 on, got 3"):
        cache.skip(3)
    with pytest.raises(ValueError, match="positions: expected one of absolute, window, got 'relative'"):
        ChunkCache(positions="relative")


def test_only_a_commit_changes_the_cached_states() -> None:
    cache = ChunkCache(4, 1)
    for first in (0, 2):
        run(cache, (2,), first)
        cache.commit()
    held = [[x.clone() for x in cache.layer(layer)] for layer in range(LAYERS)]
    pointers = [x.untyped_storage().data_ptr() for frame in cache.snapshot().kept for x in frame.keys]
    before = cache.snapshot()

    def untouched() -> bool:
        same = all(
            torch.equal(a, b) for layer, pair in enumerate(held) for a, b in zip(pair, cache.layer(layer), strict=True)
        )
        now = [x.untyped_storage().data_ptr() for frame in cache.snapshot().kept for x in frame.keys]
        return same and now == pointers and (cache.frames, cache.kept, cache.staged) == (4, 4, 0)

    run(cache, (2,), 40)
    cache.discard()
    assert untouched()
    run(cache, (1, 2), 50)
    run(cache, (2,), 60, layers=1)  # a pass that did not reach the last layer
    cache.discard()
    assert untouched()
    for first in (4, 6):
        run(cache, (2,), first)
        cache.commit()
    assert cache.layer(0)[0][0, 0, ::TOKENS, 0].tolist() == [0, 5, 6, 7]
    cache.restore(before)
    assert untouched()


def test_misuse_is_refused() -> None:
    cache = ChunkCache(4, 2)
    with pytest.raises(ValueError, match="commit: expected a pass"):
        cache.commit()
    with pytest.raises(ValueError, match="begin a pass first"):
        cache.write(0, *written([0], 0))
    with pytest.raises(ValueError, match="room for a block of 3 frames beside 2 sinks, got 4"):
        cache.begin((1, 3))
    run(cache, (2,), 0, layers=1)
    with pytest.raises(ValueError, match="expected 1 of a started pass"):
        cache.write(0, *written([0, 1], 0))
    run(cache, (2,), 0)
    cache.commit()
    with pytest.raises(ValueError, match="commit: expected a pass"):
        cache.commit()
    for window, sinks in ((2, 2), (0, 0), (3, -1)):
        with pytest.raises(ValueError, match="expected None or more frames than the"):
            ChunkCache(window, sinks)
