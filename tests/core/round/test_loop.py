"""One loop for every domain: paths, masks and blocks to make again, over values it never looks at."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from mmspec.core.round import loop
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, attention_of_changing_shapes, can_follow
from mmspec.core.round.rules import BestExact, Reflection, Rule
from tests.core.domains.blocks import TARGET, Film, RewardThreshold, Sketcher
from tests.core.domains.canvas import Canvas, CellByCell, Painter
from tests.core.domains.gaussians import SCALE, Chain, Guesser

ROWS, LENGTH = 3000, 5


def gaussians(rule: Rule, drafter: Guesser | None, seed: int) -> tuple[Tensor, loop.Stats]:
    """Noise [ROWS, LENGTH, d] that the target's law must have turned into the emitted values, N(0, 1) if it did."""
    start = torch.full((ROWS, 2), -1.0)
    target = Chain(start, LENGTH)
    run = DecodingRun(target, drafter, rule, Keys.of(seed, ROWS)).run()
    x = torch.stack([torch.stack([start[0], *rows[:LENGTH]]) for rows in target.rows])
    return (x[:, 1:] - target.pull * x[:, :-1] - target.push) / SCALE, run


def is_white(noise: Tensor) -> bool:
    """Standard normal at every step, uncorrelated between steps and axes."""
    flat = noise.flatten(1)
    fits = [stats.kstest(column.numpy(), "norm").pvalue for column in flat.T]
    off = torch.corrcoef(flat.T).fill_diagonal_(0).abs().max() * math.sqrt(len(flat))
    return min(fits) * len(fits) > 1e-3 and off < 4.5


@pytest.mark.default_cells("None-exact", "drafter1-reflection", "drafter2-exact", "drafter3-exact")
@pytest.mark.parametrize("rule", (Reflection(), BestExact()), ids=lambda r: r.name)
@pytest.mark.parametrize("drafter", (None, Guesser(), Guesser(length=1, pull=-0.5), Guesser(length=4, push=2.0)))
def test_gaussians_keep_the_target_distribution(drafter: Guesser | None, rule: Rule) -> None:
    noise, run = gaussians(rule, drafter, seed=1)
    assert is_white(noise)
    assert run.exact and (run.accept_length > 1.02) == (drafter is not None)


def test_gaussians_of_the_drafter_are_detected() -> None:
    class Gullible(Reflection):
        """Accepts whatever is drafted."""

        def weigh(self, evidence, draft):
            weights = super().weigh(evidence, draft)
            weights.threshold = torch.ones_like(weights.threshold)
            return weights

    assert not is_white(gaussians(Gullible(), Guesser(), seed=2)[0])


def film(least: float, rows: int = 50, length: int = 12) -> tuple[Film, loop.Stats]:
    reward = torch.linspace(0, 1, 21)
    target = Film(reward, rows, length)
    return target, DecodingRun(target, Sketcher(len(reward)), RewardThreshold(least), Keys.of(3, rows)).run()


@pytest.mark.parametrize("least", (0.0, 0.3, 0.75, 1.0))
def test_only_blocks_above_the_threshold_are_kept(least: float) -> None:
    target, run = film(least)
    kept = [block for row in target.blocks for block in row if block < TARGET]
    assert all(float(target.reward[block]) >= least for block in kept)
    assert target.made + len(kept) == 50 * 12 == sum(target.emitted)
    assert len(kept) == sum(map(sum, run.accepted))
    share = sum(r >= least for r in target.reward.tolist()) / len(target.reward)
    assert abs(len(kept) / (50 * 11) - share) < 5 * math.sqrt(share * (1 - share) / 550) + 1e-9
    assert not run.exact and run.rule == "reward_threshold"
    assert run.row_passes == target.made  # where a block stands, the target passed over nothing
    assert run.target_passes == sum(not all(row) for row in run.accepted)


def test_first_block_and_infinite_threshold_are_the_targets() -> None:
    assert all(row[0] >= TARGET for row in film(0.0)[0].blocks)
    target, run = film(math.inf)
    assert all(block >= TARGET for row in target.blocks for block in row)
    assert target.made == 50 * 12 and sum(map(sum, run.accepted)) == 0


def test_masked_cells_keep_the_target_distribution() -> None:
    generator = torch.Generator().manual_seed(4)
    p, q = torch.randn(2, 4, 5, generator=generator)
    target = Canvas(p, 20_000)
    run = DecodingRun(target, Painter(q), CellByCell(), Keys.of(5, target.batch)).run()
    for cell, law in zip(target.cells.T, p[1:].double().softmax(-1), strict=True):
        seen = torch.bincount(cell, minlength=5)
        assert stats.chisquare(seen.numpy(), (law / law.sum() * len(cell)).numpy()).pvalue > 1e-3
    expected = torch.minimum(p.softmax(-1), q.softmax(-1))[1:].sum(-1).sum()
    assert abs(sum(run.accepted[1]) / target.batch - float(expected)) < 0.03


def test_rows_do_not_depend_on_their_batch() -> None:
    def values(seeds: list[int]) -> list[Tensor]:
        target = Chain(torch.zeros(len(seeds), 3), LENGTH)
        DecodingRun(target, Guesser(), Reflection(), Keys.of(seeds, len(seeds))).run()
        return [torch.stack(rows[:LENGTH]) for rows in target.rows]

    assert torch.equal(values([7, 8, 9])[1], values([8])[0])


def test_counters() -> None:
    target = Chain(torch.zeros(4, 2), LENGTH)
    run = DecodingRun(target, Guesser(), Reflection(), Keys.of(1, 4)).run()
    assert run.target_passes == len(run.accepted) and run.accepted[0] == [0] * 4
    assert run.row_passes == sum(count is not None for line in run.accepted for count in line)
    for row, count in enumerate(run.emitted):
        rounds = [line[row] for line in run.accepted if line[row] is not None]
        assert sum(rounds) + len(rounds) <= count


class Reads:
    def prefill(self) -> None: ...


class Follows(Reads):
    def follow(self, target: object) -> object: ...


class ReadsOtherwise(Follows):
    def prefill(self) -> None: ...


class Wraps(Follows):
    def __init__(self, inner: object):
        self.inner = inner


def test_a_state_follows_where_it_says_so_for_the_way_it_reads() -> None:
    assert can_follow(Follows()) and can_follow(type("Named", (Follows,), {})())
    assert not can_follow(Reads()) and not can_follow(ReadsOtherwise())
    assert can_follow(type("Both", (ReadsOtherwise,), {"follow": Follows.follow})())
    assert can_follow(Wraps(Follows())) and not can_follow(Wraps(Reads())) and not can_follow(Wraps(ReadsOtherwise()))


def test_the_loop_never_opens_a_value() -> None:
    source = inspect.getsource(loop)
    code = source[source.index("class NoDraft") :]
    assert not any(word in code for word in (".value", ".scores", ".mean", ".reward", ".item()", "token"))


@pytest.mark.parametrize("name", ("gaussians", "blocks"))
def test_a_domain_is_a_target_a_drafter_and_a_rule_in_under_60_lines(name: str) -> None:
    domain = Path(__file__).parents[1] / "domains" / f"{name}.py"
    assert len(domain.read_text().splitlines()) < 60


def test_a_block_on_a_gpu_leaves_cudnn_out_and_restores_it() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with attention_of_changing_shapes(torch.device("cuda")):
            assert not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_block_on_a_cpu_changes_nothing() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with attention_of_changing_shapes(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled() == before
