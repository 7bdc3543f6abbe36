"""The bench of continuous tokens, tied together: row fields, the quality reference and the domain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mmspec.evaluate.continuous.certainty import certainty, target_figures
from mmspec.evaluate.continuous.config import ContinuousBenchConfig, ContinuousSetting
from mmspec.evaluate.continuous.methods import PLAIN
from mmspec.evaluate.continuous.page import describe, page, panels
from mmspec.evaluate.continuous.resources import ContinuousResources, open_continuous
from mmspec.evaluate.continuous.runner import cases, label_requests, make_draw, runner
from mmspec.evaluate.engine.domain import Domain, TimedSetting
from mmspec.evaluate.engine.rows import identical
from mmspec.evaluate.engine.runs import TimedRun, completed
from mmspec.evaluate.engine.statistics import middle, pairs
from mmspec.evaluate.quality.gallery import FIELDS, QUALITY, GalleryReference


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting what heads did, what was accepted, and what windows cost.

    cost_ratio: c, seconds of a drafter's pass with its heads over those of plain decoding's, in the same requests.
    predicted_speedup: gamma / (gamma c + 1), which a window that always advances gamma steps comes to whatever it accepts;
        for patched windows only.
    window_cost: v, seconds of a pass that judges a window over those of plain decoding's; 1 in that formula.
    predicted_in_full: with v, and with the passes that have no draft.
    identical: requests that gave plain decoding's tokens bit for bit, of methods that must.
    """
    plain = timed.results[PLAIN]
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        runs = completed(own)
        drafted, kept = (sum(run.more[name] for run in runs) for name in ("drafted", "kept"))
        both = list(pairs(plain, own))
        ratio = middle([cost for a, b in both if (cost := _cost(a, b)) is not None], 4)
        window = middle([_window_cost(a, b, method.gamma) for a, b in both], 3) if method.patch and ratio else None
        row["step_compression"] = row["accept_length"]
        row["head_calls"] = middle([run.more["head_calls"] for run in runs], 1)
        row["target_forwards"] = middle([run.more["forwards"] for run in runs], 1)
        row["drafter_passes"] = middle([run.drafter_passes for run in runs], 1)
        row["acceptance"] = round(kept / drafted, 4) if drafted else None
        row |= {"cost_ratio": ratio, "predicted_speedup": None, "window_cost": window, "predicted_in_full": None}
        if method.patch and ratio is not None:
            row["predicted_speedup"] = predicted_speedup(method.gamma, ratio)
        if window is not None:
            row["predicted_in_full"] = middle([_in_full(a, b, method.gamma, ratio, window) for a, b in both], 3)
        row["identical"] = identical(plain, own) if method.bitwise else None


def predicted_speedup(gamma: int, cost: float) -> float:
    """The speed-up of windows that each take gamma passes of the drafter and one of the target, and advance by gamma."""
    return round(gamma / (gamma * cost + 1), 3)


def _cost(plain: TimedRun, own: TimedRun) -> float | None:
    """c of one request: seconds of a pass of the drafter over seconds of a pass of plain decoding."""
    passes = plain.target_passes - 1  # the first is the prefill
    if not own.drafter_passes or passes < 1 or not plain.parts["target"]:
        return None
    return (own.parts["draft"] / own.drafter_passes) / (plain.parts["target"] / passes)


def _windows(run: TimedRun, gamma: int) -> tuple[int, int]:
    """Passes of a run without a draft, and those that judged one: every window but the last drafts gamma steps."""
    windows = -(-run.drafter_passes // gamma)
    return run.target_passes - windows, windows


def _window_cost(plain: TimedRun, own: TimedRun, gamma: int) -> float:
    """v of one request; its passes without a draft cost as much as plain decoding's."""
    each = plain.parts["target"] / (plain.target_passes - 1)
    alone, windows = _windows(own, gamma)
    return (own.parts["target"] / each - (alone - 1)) / windows


def _in_full(plain: TimedRun, own: TimedRun, gamma: int, cost: float, window: float) -> float:
    alone, windows = _windows(own, gamma)
    return plain.target_passes / (alone + own.drafter_passes * cost + windows * window)


def reference(
    config: ContinuousBenchConfig, resources: ContinuousResources, setting: ContinuousSetting
) -> GalleryReference:
    """Plain images of a setting, and how sure the target is."""
    asked = label_requests(resources, setting.prompts, setting.seed)
    make = partial(make_draw, resources=resources, setting=setting)
    figures = partial(target_figures, resources, setting, asked, setting.seed)
    return GalleryReference(config.rows[0], setting, asked, make, resources.scorer, lambda tokens: figures())


TIMING = (
    "whole calls with pixels, where there is an autoencoder; medians of paired ratios; spread: 10th and 90th percentile; c: "
    "seconds of a pass of the drafter with its head over those of plain decoding"
)


def environment(config: ContinuousBenchConfig, resources: ContinuousResources) -> dict:
    """What a bench file says of the model and the measuring."""
    suite = config.plan()
    return {
        "model": resources.name,
        "kind": resources.kind,
        "draft": config.draft,
        "dtype": str(next(resources.transformer.parameters()).dtype).removeprefix("torch."),
        "values": resources.total,
        "head_steps": resources.head_steps,
        "prompts": config.prompts if suite.timed else None,
        "images": config.images if suite.judged else None,
        "timing": TIMING,
        "quality": QUALITY if suite.judged else None,
    }


DOMAIN = Domain(
    name="continuous",
    shows="picture",
    config=ContinuousBenchConfig,
    output="tokens of plain decoding, bit for bit",
    resources=lambda config: open_continuous(config.model, config.draft, config.num_sampling_steps),
    cases=cases,
    runner=runner,
    certainty=certainty,
    environment=environment,
    describe=describe,
    page=page,
    panels=panels,
    complete=complete,
    reference=reference,
    quality={name: name for name in FIELDS} | {"judged_batch": "batch", "judged_step_compression": "step_compression"},
)
