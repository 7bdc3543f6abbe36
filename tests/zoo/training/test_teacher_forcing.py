"""Two passes over a clip give the flows that generation computes block by block behind a cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache
from mmspec.zoo.training.video import block_flow
from mmspec.zoo.training.video.block_flow import forced_flow
from tests.video.tiny import text, wan

SIZE, BLOCKS = 2, 4


def clip(seed: int) -> Tensor:
    return torch.randn(2, 3, SIZE * BLOCKS, 4, 4, generator=torch.Generator().manual_seed(seed))


def times() -> Tensor:
    return torch.tensor([[1000.0, 625.0, 937.5, 833.0], [10.0, 1000.0, 500.0, 625.0]]).repeat_interleave(SIZE, 1)


def block_by_block(model: torch.nn.Module, texts: list[Tensor]) -> Tensor:
    window = model.config.local_attn_size
    cache, context, noisy, flows = ChunkCache(window if window > 0 else None), clip(0), clip(1), []
    for block, said in enumerate(texts):
        cut, prompt = slice(block * SIZE, (block + 1) * SIZE), model.read(said)
        flows.append(model(noisy[:, :, cut], times()[:, cut], prompt, cache))
        model(context[:, :, cut], torch.zeros(2, SIZE), prompt, cache)
        cache.commit()
    return torch.cat(flows, 2)


@pytest.mark.parametrize("window", [-1, 2 * SIZE, 3 * SIZE])
def test_flows_are_those_of_generation(window: int) -> None:
    model = wan(local_attn_size=window)
    one, other = text(0, 2), text(1, 2)
    for segments, texts in (
        ([(0, BLOCKS, one)], [one] * 4),
        ([(0, 2, one), (2, BLOCKS, other)], [one, one, other, other]),
        ([(0, 1, one), (1, 3, other), (3, BLOCKS, one)], [one, other, other, one]),
    ):
        found = forced_flow(model, clip(0), clip(1), times(), segments, SIZE)
        torch.testing.assert_close(found, block_by_block(model, texts), atol=2e-5, rtol=2e-5)


def test_a_context_that_is_not_clean_or_a_window_too_wide_shows() -> None:
    model, said = wan(local_attn_size=2 * SIZE), text(0, 2)
    right = forced_flow(model, clip(0), clip(1), times(), [(0, BLOCKS, said)], SIZE)
    other = forced_flow(model, clip(2), clip(1), times(), [(0, BLOCKS, said)], SIZE)
    wide = forced_flow(wan(local_attn_size=-1), clip(0), clip(1), times(), [(0, BLOCKS, said)], SIZE)
    first, later = slice(0, SIZE), slice(2 * SIZE, None)
    for wrong in (other, wide):
        torch.testing.assert_close(wrong[:, :, first], right[:, :, first])
        assert (wrong[:, :, later] - right[:, :, later]).abs().max() > 1e-3


def test_clean_keys_get_gradients_and_the_last_block_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    context = clip(0).requires_grad_()
    forced_flow(wan(), context, clip(1), times(), [(0, BLOCKS, text(0, 2))], SIZE).sum().backward()
    each = context.grad.abs().unflatten(2, (BLOCKS, SIZE)).sum((0, 1, 3, 4, 5))
    assert (each[:-1] > 0).all() and each[-1] == 0


def test_blocks_of_another_size_are_refused() -> None:
    cache = block_flow.CleanContext(SIZE, -1, 0, [], True)
    with pytest.raises(ValueError, match="expected blocks of 2 frames"):
        cache.begin((2, 3))
