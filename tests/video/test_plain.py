"""Whole films as a model written out draws them: rolling windows, sinks, both kinds of positions, first blocks of another
size, lists of steps, context noise, and prompts that change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from mmspec.video import BlockPlan, Cached, FewStep, Rebuilt
from tests.video.plain_wan import PlainWan, few_steps, said, warped
from tests.video.tiny import GRID, SIZES, apart, noise, text, video, wan

BLOCKS = 7


@dataclass(frozen=True)
class Case:
    plan: BlockPlan = BlockPlan(2)
    window: int | None = None
    sinks: int = 0
    relative: bool = False
    sampler: FewStep = FewStep()
    times: tuple[float, ...] = tuple(warped((1000, 750, 500, 250), 5.0))
    clean: float = 0.0
    switches: tuple[int, ...] = ()
    recache: bool = False


def prompts(case: Case) -> dict[int, Tensor]:
    return {block: text(seed)[0] for seed, block in enumerate((0, *case.switches))}


def block_noise(case: Case, block: int) -> list[Tensor]:
    shape = (SIZES.in_channels, case.plan.frames(block), *GRID)
    return [noise().at(block, draw, shape)[0] for draw in range(len(case.times))]


def written_out(case: Case) -> list[Tensor]:
    model, past, film, told = PlainWan(wan()), [], [], prompts(case)
    how = {"window": case.window, "sinks": case.sinks, "relative": case.relative}
    for block in range(BLOCKS):
        first, frames = case.plan.start(block), case.plan.frames(block)
        if case.recache and block in case.switches:
            past = read_again(model, case, film, told[block], how)

        def flow(x: Tensor, time: float) -> Tensor:
            return model.block(x, [time] * frames, said(told, block), past, first, **how)[0]  # noqa: B023

        film.append(few_steps(flow, block_noise(case, block), case.times, case.sampler.shift))
        past += model.block(film[-1], [case.clean] * frames, said(told, block), past, first, **how)[1]
        past = seen(past, case)
    return film


def seen(past: list, case: Case) -> list:
    """What a rolling window still has."""
    while case.window is not None and len(past) > case.window:
        past = past[: case.sinks] + past[case.sinks + 1 :]
    return past


def read_again(model: PlainWan, case: Case, film: list[Tensor], told: Tensor, how: dict) -> list:
    """The frames that are left of the past, block by block under another prompt, at the places where they were."""
    kept = {frame.number for frame in seen([Number(i) for i in range(case.plan.start(len(film)))], case)}
    past: list = []
    for number, block in enumerate(film):
        inside = [i for i in range(block.shape[1]) if case.plan.start(number) + i in kept]
        runs = [[i for i in inside if (case.plan.start(number) + i < case.sinks) == early] for early in (True, False)]
        whole = [inside] if len(kept) == case.plan.start(len(film)) else runs
        for run in filter(None, whole):
            first = case.plan.start(number) + run[0]
            past += model.block(block[:, run], [case.clean] * len(run), told, past, first, **how)[1]
    return past


@dataclass
class Number:
    number: int


ROLLING = [(4, 0), (4, 1), (5, 1), (7, 3)]
CASES = {
    "everything": Case(),
    "context noise": Case(clean=20.0, window=5, sinks=1),
    "causvid": Case(sampler=FewStep((1000, 757, 522), 8.0, warp=False), times=(1000.0, 757.0, 522.0)),
    "krea's steps": Case(sampler=FewStep.krea(), times=tuple(warped((1000, 750, 500, 250, 0), 5.0))),
    "a first block of one": Case(BlockPlan(3, first=1), 7, 1),
    "a first block of one, relative": Case(BlockPlan(3, first=1), 7, 2, relative=True),
    "prompts": Case(switches=(2, 5)),
    "prompts, rolling": Case(window=5, sinks=1, switches=(2, 5)),
    "prompts, read again": Case(switches=(2, 5), recache=True),
    "prompts, rolling, read again": Case(window=5, sinks=1, switches=(2, 5), recache=True),
    "prompts, rolling in whole blocks, read again": Case(window=6, sinks=2, switches=(4, 5), recache=True),
    "prompts, relative, read again": Case(window=7, sinks=3, relative=True, switches=(1, 5), recache=True),
    **{f"rolling {window} {sinks}": Case(window=window, sinks=sinks) for window, sinks in ROLLING},
    **{f"relative {window} {sinks}": Case(window=window, sinks=sinks, relative=True) for window, sinks in ROLLING},
}


WAYS = {"eager": (1, 1), "lazy": (1, 3), "masked": (None, 3)}  # blocks read at once, and of how many one is drawn


def furthest(case: Case, way: str, wanted: list[Tensor]) -> float:
    """How far a block is at most from the one that is written out, behind the same film."""
    at_once, every = WAYS[way]
    positions = "window" if case.relative else "absolute"
    context = Cached(case.window, case.sinks, at_once, positions, case.recache)
    model = video(context, plan=case.plan, sampler=case.sampler, context_noise=case.clean)
    told = prompts(case)
    state = model.open(told[0][None], noise(), GRID)
    for block in case.switches:
        state.switch(told[block][None], block)
    film, most = [], 0.0
    for block, plain in enumerate(wanted):
        if way == "eager":
            state.absorb(film)
        if block % every == 0:
            most = max(most, apart(state.generate(film), plain[None]))
        film.append(plain[None])
    return most


@pytest.mark.parametrize("name", CASES)
def test_a_film_is_that_of_the_model_written_out(name: str) -> None:
    case = CASES[name]
    wanted = written_out(case)
    assert [entry.shape[1] for entry in wanted] == [case.plan.frames(block) for block in range(BLOCKS)]
    for way in WAYS:
        assert furthest(case, way, wanted) < 1e-4, way  # of values up to 7, and settings 1e-3 apart


def test_each_setting_of_the_cases_changes_the_video() -> None:
    """Each setting changes what is drawn, by far more than the two may be apart."""
    base = Case(window=5, sinks=1, switches=(2, 5))
    last = written_out(base)[-1]
    for other in (
        {"window": 6},
        {"sinks": 0},
        {"relative": True},
        {"clean": 20.0},
        {"switches": (2, 6)},
        {"switches": (5,)},
        {"recache": True},
    ):
        assert apart(last, written_out(replace(base, **other))[-1]) > 2e-3, other


def test_without_sinks_positions_in_the_window_are_those_of_the_film() -> None:
    """Attention sees differences of positions alone."""
    one, other = (written_out(Case(window=4, relative=relative))[-1] for relative in (False, True))
    assert apart(one, other) < 1e-4


def test_a_rebuilt_context_is_a_film_that_begins_with_it() -> None:
    """Krea's: the first latent frame and the last two, read clean at positions from 0, then the block behind them."""
    case = Case(BlockPlan(3), sampler=FewStep.krea(), times=tuple(warped((1000, 750, 500, 250, 0), 5.0)))
    model, film, told = PlainWan(wan()), [], prompts(case)[0]
    state = video(Rebuilt(3), plan=case.plan, sampler=case.sampler).open(told[None], noise(), GRID)
    ours: list[Tensor] = []
    for block in range(5):
        past = []
        if film:
            frames = torch.cat(film, 1)
            past = model.block(torch.cat((frames[:, :1], frames[:, -2:]), 1), [0.0] * 3, told, [], 0)[1]

        def flow(x: Tensor, time: float) -> Tensor:
            return model.block(x, [time] * 3, told, past, len(past))[0]  # noqa: B023

        film.append(few_steps(flow, block_noise(case, block), case.times, 5.0))
        ours.append(state.generate(ours))
        assert apart(ours[-1], film[-1][None]) < 1e-4
