"""The autoregressive models of diffusers draft for each other through the same call."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.video import (
    SDVG,
    AnyFlowVideo,
    BlockPlan,
    BlockVideoPipeline,
    FlowMap,
    HeliosVideo,
    KeyedBlockNoise,
    Rebuilt,
    Scheduled,
    SkyReelsVideo,
    StreamingWanVAE,
)
from tests.video.adapters.test_pipelines import SIZE, TEXT, anyflow, helios, skyreels, staged, vae
from tests.video.decoding.tiny import Told
from tests.video.tiny import apart


def euler(shift: float = 5.0) -> object:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=shift)


FAMILIES = {
    "anyflow": lambda seed: AnyFlowVideo(anyflow(seed), FlowMap(2), BlockPlan(2, first=1)),
    "skyreels": lambda seed: SkyReelsVideo(skyreels(seed), Scheduled(euler(), 2), BlockPlan(2), window=6),
    "helios": lambda seed: HeliosVideo(helios(seed), euler(), 2, BlockPlan(2, apart=True), (4, 2, 1)),
    "helios, stages": lambda seed: HeliosVideo(
        helios(seed), staged(stages=2), (2, 1), BlockPlan(2, apart=True), (4, 2, 1)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_pair_is_routed_as_wan_is(family: str) -> None:
    large, small = FAMILIES[family](0), FAMILIES[family](1)
    pipe = BlockVideoPipeline(large, StreamingWanVAE(vae()), size=(32, 32), blocks=4)

    def drawn(*scores: float, threshold: float = 0.0):  # noqa: ANN202
        decoding = SDVG(small, Told({"a": list(scores)}), threshold, optimistic=True)
        return pipe(TEXT, seed=[0], decoding=decoding, reward_prompt="a")

    plain = pipe(TEXT, seed=[0])
    assert torch.equal(drawn(1, 1, 1, threshold=math.inf).latents[0], plain.latents[0])
    out = drawn(1, -1, 1)
    film = list(out.latents[0][None].split([large.plan.frames(block) for block in range(4)], 2))
    assert [record.kept for record in out.stats.records[0]] == [False, True, False, True] and not out.errors
    for block, model in enumerate((large, small, large, small)):
        state = model.open(TEXT, KeyedBlockNoise(Keys.of([0], 1)), SIZE)
        assert apart(state.generate(film[:block]), film[block]) < 1e-5
    assert apart(out.latents[0], plain.latents[0]) > 1e-3
    with pytest.raises(ValueError, match="sync: expected 'lazy' or 'eager' for target"):
        pipe(TEXT, decoding=SDVG(small, Told({}), 0.0, sync=Rebuilt(3)), reward_prompt="a")
