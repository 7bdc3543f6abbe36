"""Routed videos as the whole procedure written out makes them: two models with a past each, one film, one noise, a score that
is the least of a block's frames, and pixels of the whole film decoded at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.video import BlockPlan, BlockVideoPipeline, Cached, KeyedBlockNoise, Rebuilt
from tests.video.decoding.tiny import SIZE, bright, drafter, encode, sdvg, vae
from tests.video.plain_wan import Frame, PlainWan, few_steps, said, warped
from tests.video.tiny import GRID, SIZES, FewStep, apart, video, wan
from tests.video.vae.plain import plain_decode

BLOCKS, SEED, STEPS = 8, 11, (1000, 500)
TIMES = warped(STEPS, 5.0)


@dataclass
class Player:
    """A model and what it has read of the film. few: latent frames that are read anew before every block instead."""

    model: PlainWan
    how: dict
    few: int | None = None
    past: list[Frame] = field(default_factory=list)
    watermark: int = 0

    def draw(self, film: list[Tensor], noise: list[Tensor], told: dict[int, Tensor], plan: BlockPlan) -> Tensor:
        block, frames, first = len(film), noise[0].shape[1], plan.start(len(film))
        if self.few is not None:
            self.past, first = [], 0
            if film:
                whole = torch.cat(film, 1)
                shown = whole if whole.shape[1] <= self.few else torch.cat((whole[:, :1], whole[:, 1 - self.few :]), 1)
                for part in shown.split(plan.cut(shown.shape[1]), 1):
                    self.read(part, said(told, block), first)
                    first += part.shape[1]
        else:
            self.absorb(film, told, plan)

        def flow(x: Tensor, time: float) -> Tensor:
            return self.model.block(x, [time] * frames, said(told, block), self.past, first, **self.how)[0]

        return few_steps(flow, noise, TIMES, 5.0)

    def absorb(self, film: list[Tensor], told: dict[int, Tensor], plan: BlockPlan) -> None:
        for number in range(self.watermark, len(film)):
            self.read(film[number], said(told, number), plan.start(number))
        self.watermark = len(film)

    def read(self, latents: Tensor, text: Tensor, first: int) -> None:
        clean = [0.0] * latents.shape[1]
        self.past += self.model.block(latents, clean, text, self.past, first, **self.how)[1]
        while (window := self.how.get("window")) and len(self.past) > window:
            del self.past[self.how["sinks"]]


def pixels(film: list[Tensor]) -> Tensor:
    """uint8 [N, 3, H, W] of the whole film."""
    return ((plain_decode(vae().model, torch.cat(film, 1)[None])[0].transpose(0, 1) + 1) * 127.5).round().byte()


def procedure(
    large: Player, small: Player, prompts: dict[int, str], plan: BlockPlan, least: float, eager: bool
) -> tuple[list[Tensor], list[bool], list[float]]:
    """The film, which drafts stand, and what each draft's frames score at least."""
    told = {block: encode([prompt])[0] for block, prompt in prompts.items()}
    source, film, kept, scores = KeyedBlockNoise(Keys.of([SEED], 1)), [], [], []
    for block in range(BLOCKS):
        shape = (SIZES.in_channels, plan.frames(block), *GRID)
        noise = [source.at(block, draw, shape)[0] for draw in range(len(TIMES))]
        stands = False
        if block not in prompts:
            draft = small.draw(film, noise, told, plan)
            shown = pixels([*film, draft])[plan.shown(block, vae().layout.frames) :]
            scores.append(bright(shown, said(prompts, block)).min().item())
            stands = scores[-1] >= least
        film.append(draft if stands else large.draw(film, noise, told, plan))
        kept.append(stands)
        if eager:
            large.absorb(film, told, plan)
    return film, kept, scores


ROLLING = {"window": 5, "sinks": 1}
WAYS = {
    "lazy": (Cached(), {}, "lazy"),
    "eager": (Cached(), {}, "eager"),
    "rolling, lazy": (Cached(5, 1), ROLLING, "lazy"),
    "rolling, eager": (Cached(5, 1), ROLLING, "eager"),
    "rolling in the window, masked": (Cached(5, 1, None, "window"), {**ROLLING, "relative": True}, "lazy"),
    "rebuilt": (Cached(), {}, Rebuilt(3)),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("plan", "switched"), [(BlockPlan(2), False), (BlockPlan(3, first=1), True)], ids=str)
def test_a_routed_video_is_the_procedures(way: str, plan: BlockPlan, switched: bool) -> None:
    context, how, sync = WAYS[way]
    prompts = {0: "a red ball", **({5: "a blue star"} if switched else {})}

    def played(least: float) -> tuple[list[Tensor], list[bool], list[float]]:
        few = sync.frames if isinstance(sync, Rebuilt) else None
        large, small = Player(PlainWan(wan()), {} if few else how, few), Player(PlainWan(wan(1)), how)
        return procedure(large, small, prompts, plan, least, sync == "eager")

    least = sorted(played(-np.inf)[2])[2]
    least = least + 1e-4  # between two scores
    film, kept, scores = played(least)
    assert {True, False} == set(kept[1:]) and min(abs(score - least) for score in scores) > 1e-5
    sampler = FewStep(STEPS)
    pipe = BlockVideoPipeline(video(context, plan=plan, sampler=sampler), vae(), encode, size=SIZE, blocks=BLOCKS)
    decoding = sdvg(bright, least, drafter=drafter(context, plan=plan, sampler=sampler), sync=sync)
    switch = {block: prompt for block, prompt in prompts.items() if block}
    out = pipe(prompts[0], seed=[SEED], decoding=decoding, switch=switch)
    records = out.stats.records[0]
    assert [record.kept for record in records] == kept
    assert [min(r.scores) for r in records if r.drafted] == pytest.approx(scores, abs=2e-4)
    assert apart(out.latents[0], torch.cat(film, 1)) < 1e-3
    shown = pixels(film).permute(0, 2, 3, 1)
    assert (torch.from_numpy(out.videos[0]).int() - shown.int()).abs().max() <= 1
