"""Compressors of pictures: what each makes of the rows of one."""

from __future__ import annotations

import torch

from mmspec.vlm.drafters.specvlm.compressors import (
    ConvCompressor,
    PoolCompressor,
    PruneCompressor,
    ResamplerCompressor,
    TextOnlyCompressor,
)


def test_compressors_make_the_rows_they_should() -> None:
    rows, length = torch.randn(2, 7, 4), torch.tensor([7, 4])
    clean = torch.where(torch.arange(7)[None, :, None] < length[:, None, None], rows, torch.nan)
    pool, conv, prune = PoolCompressor(3), ConvCompressor(4, 3), PruneCompressor(3).eval()
    assert pool.count(length).tolist() == conv.count(length).tolist() == prune.count(length).tolist() == [3, 2]
    averages = [[clean[k, i : i + 3].nanmean(0) for i in range(0, 7, 3)] for k in range(2)]
    for module in (pool, conv):  # the convolution starts as the average; what lies beyond a picture is never read
        made = module(clean, length)
        for k, count in enumerate((3, 2)):
            torch.testing.assert_close(made[k, :count], torch.stack(averages[k][:count]))
    assert torch.equal(prune(rows, length)[0], rows[0, [1, 3, 5]])
    assert torch.equal(prune(rows, length)[1, :2], rows[1, [1, 3]])
    with torch.no_grad():
        conv.mix.weight.normal_()
        conv.mix.bias.normal_()
    torch.testing.assert_close(conv(rows, length)[0, 1], conv.mix(rows[0, 3:6].flatten()))
    assert TextOnlyCompressor().count(length).tolist() == [0, 0] and TextOnlyCompressor()(rows, length).shape == (
        2,
        0,
        4,
    )


def test_the_resampler_attends_to_the_picture_alone() -> None:
    torch.manual_seed(0)
    sampler, rows, length = ResamplerCompressor(8, 2, 4, 2, 1e-6), torch.randn(2, 5, 8), torch.tensor([5, 3])
    made = sampler(rows, length)
    assert made.shape == (2, 2, 8) and sampler.count(length).tolist() == [2, 2]
    for k in range(2):
        own, normed = rows[k, : length[k]], torch.nn.functional.rms_norm(rows[k, : length[k]], (8,))
        for head in range(2):
            at = slice(4 * head, 4 * head + 4)
            scores = sampler.query[:, at] @ sampler.key(normed)[:, at].T / 2
            torch.testing.assert_close(made[k, :, at], scores.softmax(-1) @ own[:, at])


def test_training_prunes_at_random_in_order_and_only_within_the_picture() -> None:
    rows, length = torch.arange(10.0)[None, :, None].expand(2, -1, 1), torch.tensor([10, 6])
    prune, drawn = PruneCompressor(2), set()
    for _ in range(8):
        kept = prune(rows, length)[..., 0]
        assert (kept[0].diff() > 0).all() and (kept[1, :3].diff() > 0).all() and kept[1, :3].max() < 6
        drawn.add(tuple(kept[0].tolist()))
    assert len(drawn) > 3
    with torch.no_grad():  # a draft made between two steps is not left to chance
        assert torch.equal(prune(rows, length), prune.eval()(rows, length))
