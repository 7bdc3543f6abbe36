"""Figures of requests for videos: accepted blocks, the certainty of the target, and predictions of the timing model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.rows import identical
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.engine.statistics import interval, middle, paired_ratios
from mmspec.evaluate.image.figures import LawObserver
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.evaluate.video.config import VideoSetting
from mmspec.run.decoding_options import PLAIN
from mmspec.run.model_kinds import BLOCKS
from mmspec.run.timed_run import TimedRun, raise_errors
from mmspec.run.video_models import ALONE, PipelineCall, VideoResources
from mmspec.video.decoding.cost_model import BlockCosts, BlockWork
from mmspec.video.wan.rebuilt import Rebuilt

if TYPE_CHECKING:
    from mmspec.video.decoding.output import VideoOutput, VideoStats

OBSERVED_VIDEOS = 4  # videos whose distributions are recorded


def draw(
    way: PipelineCall, requests: Sequence[GenerationRequest], setting: VideoSetting, seed: int | Sequence[int]
) -> VideoOutput:
    """Draw videos of blocks, or raise the error of a video that failed."""
    out = way.pipeline([request.prompt for request in requests], blocks=setting.blocks, seed=seed, **way.arguments)
    raise_errors(out.errors)
    return out


def block_facts(way: PipelineCall, stats: VideoStats) -> dict[str, Any]:
    """Return the facts of a request that rows and the timing model need. `steps` and `draft_steps` are the passes that
    draw a block. `sync` says how the drafter's context is updated, `judges` whether drafts are scored. `blocks` has, by
    video and block, whether it was drafted, whether the draft was accepted, and how many times it was scored."""
    decoding, steps = way.arguments.get("decoding"), way.pipeline.model.passes
    drafter = None if decoding is None else decoding.model
    scored = [
        [(record.scores is not None) + (record.own_scores is not None) for record in row] for row in stats.records
    ]
    return {
        "steps": steps,
        "draft_steps": steps if drafter is None else drafter.passes,
        "sync": _sync(decoding),
        "judges": decoding is not None and decoding.needs.reward,
        "target_forwards": stats.target_forwards,
        "context_forwards": stats.context_forwards,
        "block_s": list(stats.block_s),
        "blocks": [
            [[bool(record.drafted), bool(record.kept), scorings] for record, scorings in zip(*pair, strict=True)]
            for pair in zip(stats.records, scored, strict=True)
        ],
    }


def _sync(decoding: Any) -> str:
    if decoding is None:
        return "lazy"
    return "rebuilt" if isinstance(decoding.sync, Rebuilt) else decoding.sync


def block_bytes(latents: Tensor, plan: Any) -> tuple[bytes, ...]:
    """Return latents float [C, F, h, w] as bytes, block by block; equal where every bit is equal."""
    parts = latents.float().cpu().split(list(plan.cut(latents.shape[1])), dim=1)
    return tuple(part.contiguous().numpy().tobytes() for part in parts)


def certainty(timed: TimedSetting) -> dict:
    """Return the shape of videos of blocks; for codes, the mean largest probability of their distributions."""
    if timed.resources.kind == BLOCKS:
        return video_shape(timed.resources, timed.setting)
    prompts = [run.prompt for case in timed.cases for run in case][:OBSERVED_VIDEOS]
    observer = LawObserver()
    pipe, setting = timed.resources.pipeline, timed.setting
    pipe(prompts, decoding=observer, seed=setting.seed, pixels=False, temperature=setting.temperature)
    geometry = pipe.model.geometry
    return {
        "top1_probability": round(float(torch.stack(observer.top1).mean()), 4),
        "values": geometry.total,
        "frames": geometry.frames,
    }


def video_shape(resources: VideoResources, setting: VideoSetting) -> dict:
    """Return the sizes of a video of blocks and of its models. `blocks` and `block_frames` count latent frames,
    `target_steps` and `draft_steps` the passes that draw a block. `parameter_ratio` is the target's parameters over the
    drafter's, None without a drafter."""
    pipe = resources.pipeline
    small = resources.drafter().model if _drafts(resources) else None
    return {
        "blocks": setting.blocks or pipe.blocks,
        "block_frames": pipe.model.plan.size,
        "target_steps": pipe.model.passes,
        "draft_steps": None if small is None else small.passes,
        "parameter_ratio": None if small is None else round(_size(pipe.model) / _size(small), 2),
    }


def _drafts(resources: VideoResources) -> bool:
    try:
        resources.drafter()
    except ValueError:
        return False
    return True


def _size(model: object) -> int:
    return sum(value.numel() for value in model.transformer.parameters())


@dataclass(frozen=True, slots=True)
class VideoPassCosts:
    """The costs of the timing model in seconds."""

    target: float  # a pass
    drafter: float  # a pass
    decode: float  # the pixels of a block
    reward: float  # the score of a block


def pass_costs(plain: Sequence[TimedRun], alone: Sequence[TimedRun], others: Sequence[TimedRun]) -> VideoPassCosts:
    """Estimate the costs of the timing model from requests of the target alone (`plain`), of the drafter alone, and all
    requests (`others`), some of which scored blocks. Without requests of the drafter alone, its passes in `others` are
    used."""
    drafts = [run.parts["draft"] / run.more["target_forwards"] for run in alone]
    drafted = [run.parts["draft"] / run.drafter_passes for run in others if run.drafter_passes]
    return VideoPassCosts(
        _middle([run.parts["target"] / run.more["target_forwards"] for run in plain]),
        _middle(drafts or drafted),
        _middle([run.parts["vae"] / run.tokens for run in plain]),
        _middle([run.parts["reward"] / scored for run in others if (scored := sum(map(_scored, run.more["blocks"])))]),
    )


def predicted_seconds(run: TimedRun, price: VideoPassCosts, *, alone: bool = False) -> float:
    """Predict the seconds of a request from its drafts and verdicts; `alone` says that the drafter ran in the target's
    place."""
    more = run.more
    costs = BlockCosts(price.target, price.drafter, price.decode, price.reward, more["steps"], more["draft_steps"])
    if alone:
        costs = BlockCosts(price.drafter, 0.0, price.decode, steps=more["steps"])
    works = []
    for row in more["blocks"]:
        drafted, accepted, _ = zip(*row, strict=True)
        works.append(
            BlockWork.of(list(accepted), list(drafted), more["sync"], scored=_scored(row) if more["judges"] else 0)
        )
    return sum(work.seconds(costs) for work in works)


def _scored(row: Sequence[Sequence]) -> int:
    return sum(times for _, _, times in row)


def _middle(values: Sequence[float]) -> float:
    return median(values) if values else 0.0


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Add to the rows of a setting the interval of the speed-up, and for blocks acceptance, latency and predictions.
    `speedup_interval` is the 90 % interval of the median ratio over resampled prompts. `fewer_passes` is plain
    decoding's passes over the method's."""
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        by_case = [paired_ratios([a], [b]) for a, b in zip(plain, own, strict=True)]
        row["speedup_interval"] = interval([ratio for ratio in by_case if ratio], np.median)
        passes = row["target_passes"]
        row["fewer_passes"] = round(rows[PLAIN]["target_passes"] / passes, 2) if passes else None
    if timed.resources.kind != BLOCKS:
        return
    runs = {method.key: completed(timed.results[method.key]) for method in timed.methods}
    price = pass_costs(runs[PLAIN], runs.get(ALONE, []), [run for some in runs.values() for run in some])
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        alone = method.key == ALONE
        row |= {**block_fields(runs[method.key], not alone), **_predictions(runs[method.key], price, alone)}
        row["identical"] = identical(plain, own) if method.bitwise else None


def block_fields(runs: Sequence[TimedRun], target: bool = True) -> dict:
    """Return the acceptance and latency of the blocks of requests. `acceptance` is the share of videos whose draft was
    accepted, by block, `accepted_share` that of all blocks but the first. `target_blocks` is the mean per video.
    `latency_p50` and `latency_p95` are seconds until a block of every row is finished. For `target` see
    `accepted_blocks`."""
    seconds = [block for run in runs for block in run.more["block_s"]]
    accepted = [[entry[1] for entry in row] for run in runs for row in run.more["blocks"]]
    drafts = [run.drafter_passes if target else run.more["target_forwards"] for run in runs]
    return {
        **accepted_blocks(accepted, target),
        **{
            name: middle([run.more[name] * target for run in runs], 1)
            for name in ("target_forwards", "context_forwards")
        },
        "drafter_passes": middle(drafts, 1),
        "latency_p50": _percentile(seconds, 50),
        "latency_p95": _percentile(seconds, 95),
    }


def accepted_blocks(accepted: Sequence[Sequence[bool]], target: bool = True) -> dict:
    """Return the acceptance of the blocks of videos from whether each draft was accepted. The target drew the other
    blocks; without `target` the drafter drew all blocks."""
    table = np.array([[entry or not target for entry in row] for row in accepted], dtype=float)
    if not table.size:
        return {"acceptance": None, "accepted_share": None, "target_blocks": None}
    return {
        "acceptance": [round(float(share), 4) for share in table.mean(0)],
        "accepted_share": round(float(table[:, 1:].mean()), 4) if table.shape[1] > 1 else 0.0,
        "target_blocks": round(float((1 - table).sum(1).mean()), 3),
    }


def _predictions(runs: Sequence[TimedRun], price: VideoPassCosts, alone: bool) -> dict:
    """Return the median `predicted_seconds`, and `prediction_ratio`, the median of measured over predicted seconds."""
    predictions = [(run.seconds, predicted_seconds(run, price, alone=alone)) for run in runs]
    return {
        "predicted_seconds": middle([guess for _, guess in predictions], 4),
        "prediction_ratio": middle([seconds / guess for seconds, guess in predictions if guess > 0], 3),
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 4) if values else None
