"""The zoo's image models: exact decodings draw what plain decoding draws, greedy picture by picture, sampled in law."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import mmspec
from mmspec.certify.samples import chi_square
from mmspec.imagegen import SCD, SJD, Proactive, RowDrafts
from mmspec.zoo.world.image import HELD_OUT, image_prompt, sample_image_scene

PROMPTS = [image_prompt(sample_image_scene(HELD_OUT + number), 0) for number in range(2)]
EXACT = {
    "sjd": lambda: SJD(16),
    "sjd-up": lambda: SJD(16, init="up"),
    "scd-gumbel": lambda: SCD(16),
    "scd-maximal": lambda: SCD(16, coupling="maximal"),
    "scd-tree": lambda: SCD(16, tree=Proactive()),
    "rows": lambda: RowDrafts(SCD(16)),
    "eagle": lambda: mmspec.zoo.load("t2i/eagle"),
}
ROWS, AT_ONCE, TOP_K = 2000, 200, 4  # a cache for all rows at once takes many GB


@cache
def pipe(name):
    return mmspec.zoo.load(name)


@cache
def plain_codes():
    return pipe("t2i")(PROMPTS, temperature=0, pixels=False).tokens


@pytest.mark.default_cells("sjd")
@pytest.mark.parametrize("name", EXACT)
def test_greedy_pictures_are_plain_decodings(name):
    out = pipe("t2i")(PROMPTS, decoding=EXACT[name](), temperature=0, pixels=False)
    assert out.stats.exact and torch.equal(out.tokens, plain_codes())
    assert out.stats.target_passes < 256


@pytest.mark.default_cells("scd-gumbel")
@pytest.mark.parametrize("name", ["plain", "sjd", "scd-gumbel", "scd-maximal", "scd-tree"])
def test_the_first_codes_have_the_models_distribution(name):
    model = pipe("c2i").model.transformer
    drawn = torch.cat([beginnings(name, seed) for seed in range(ROWS // AT_ONCE)])
    cells, chance = joint_of_three(model)
    which = (drawn[:, None] == cells).all(-1)
    assert bool(which.any(-1).all())
    test = chi_square(which.sum(0), chance * ROWS)
    assert test.passed, (test.statistic, test.limit)


def beginnings(name, seed):
    """The first three codes of `AT_ONCE` pictures, int64 [AT_ONCE, 3]."""
    decoding = None if name == "plain" else SMALL[name]()
    run = pipe("c2i").start([3] * AT_ONCE, decoding=decoding, guidance_scale=1.0, top_k=TOP_K, seed=seed)
    while min(run.target.filled) < 3:
        run.step()
    return run.target.values[:, :3].clone()


SMALL = {
    "sjd": lambda: SJD(4),
    "scd-gumbel": lambda: SCD(4),
    "scd-maximal": lambda: SCD(4, coupling="maximal"),
    "scd-tree": lambda: SCD(4, tree=Proactive(depth=2, width=2)),
}


@torch.no_grad()
def joint_of_three(model):
    """Every possible beginning of three codes int64 [64, 3], and how likely it is."""
    begun, chance = torch.zeros(1, 0, dtype=torch.long), torch.ones(1, dtype=torch.float64)
    for _ in range(3):
        codes = torch.cat([begun, begun.new_zeros(len(begun), 1)], 1)
        logits = model.training_logits(torch.full((len(codes),), 3), codes)[:, -1]
        top = logits.topk(TOP_K, -1)
        begun = torch.cat([begun.repeat_interleave(TOP_K, 0), top.indices.flatten()[:, None]], 1)
        chance = chance.repeat_interleave(TOP_K) * top.values.double().softmax(-1).flatten()
    return begun, chance
