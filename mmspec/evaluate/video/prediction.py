"""What the timing model says a request takes, from costs that plain requests of the same bench had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mmspec.evaluate.video.runner import BlockRun
from mmspec.video.decoding.timing import BlockCosts, BlockWork, Sync
from mmspec.video.wan.rebuilt import Rebuilt


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds. target, drafter: of a pass.   decode: of a block's pixels.   reward: of a block's score."""

    target: float
    drafter: float
    decode: float
    reward: float


def prices(plain: Sequence[BlockRun], alone: Sequence[BlockRun], others: Sequence[BlockRun]) -> Prices:
    """plain, alone: of target and drafter by themselves.   others: all requests, some of which scored blocks; where the
    drafter was not run by itself, its passes among them are taken."""
    drafts = [run.parts["draft"] / run.stats.target_forwards for run in alone]
    drafted = [run.parts["draft"] / run.stats.drafter_passes for run in others if run.stats.drafter_passes]
    return Prices(
        _middle([run.parts["target"] / run.stats.target_forwards for run in plain]),
        _middle(drafts or drafted),
        _middle([run.parts["vae"] / run.tokens for run in plain]),
        _middle([run.parts["reward"] / scored for run in others if (scored := _scored(run))]),
    )


def predicted(run: BlockRun, price: Prices) -> float:
    """Seconds of a request with the drafts and verdicts that it had."""
    decoding: Any = run.way.arguments.get("decoding")
    model = run.way.pipeline.model
    drafter = None if decoding is None else decoding.model
    costs = BlockCosts(price.target, price.drafter, price.decode, price.reward, model.passes,
                       model.passes if drafter is None else drafter.passes)  # fmt: skip
    if run.alone:
        costs = BlockCosts(price.drafter, 0.0, price.decode, steps=model.passes)
    return sum(_work(row, decoding).seconds(costs) for row in run.stats.records)


def _work(row: Sequence[Any], decoding: Any) -> BlockWork:
    judges = decoding is not None and decoding.judging().router.judges
    scored = sum((one.scores is not None) + (one.own_scores is not None) for one in row) if judges else 0
    kept, drafted = [one.kept for one in row], [one.drafted for one in row]
    return BlockWork.of(kept, drafted, _sync(decoding), scored=scored)


def _sync(decoding: Any) -> Sync:
    if decoding is None:
        return "lazy"
    return "rebuilt" if isinstance(decoding.sync, Rebuilt) else decoding.sync


def _scored(run: BlockRun) -> int:
    return sum((one.scores is not None) + (one.own_scores is not None) for row in run.stats.records for one in row)


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0
