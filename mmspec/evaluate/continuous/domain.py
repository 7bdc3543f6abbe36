"""The bench of continuous tokens, tied together: row fields, the quality reference, tables and plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mmspec.evaluate.continuous.config import ContinuousBenchConfig, ContinuousSetting
from mmspec.evaluate.continuous.methods import PLAIN
from mmspec.evaluate.continuous.resources import ContinuousResources, open_continuous
from mmspec.evaluate.continuous.runner import cases, certainty, label_requests, make_draw, runner, target_figures
from mmspec.evaluate.continuous.suites import SUITES
from mmspec.evaluate.engine.domain import Domain, TimedSetting
from mmspec.evaluate.engine.rows import identical
from mmspec.evaluate.engine.runs import TimedRun, completed
from mmspec.evaluate.engine.statistics import middle, pairs
from mmspec.evaluate.quality.gallery import FIELDS, QUALITY, GalleryReference
from mmspec.evaluate.report.bench_page import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import IMAGE_COLUMNS, Page, best_rows, counts, near_plain, suite_page
from mmspec.evaluate.report.page import Cell, figure
from mmspec.evaluate.report.plots import SPEEDUP, Line, Panel, grouped, lines_of, plot_of

BY = ("batch", "guidance", "num_iter", "temperature")

COLUMNS: dict[str, Cell] = {
    **SHARED,
    **IMAGE_COLUMNS,
    **{name: figure(name) for name in ("knob", "gamma", "acceptance")},
    "head calls": figure("head_calls"),
    "target forwards": figure("target_forwards"),
    "c": figure("cost_ratio"),
    "v": figure("window_cost"),
    "predicted x": figure("predicted_speedup"),
    "in full": figure("predicted_in_full"),
    "tokens a pass": figure("step_compression"),
}
# "Continuous Speculative Decoding for Autoregressive Image Generation": pair -> speed-up at batch 256 by gamma, one A100
PUBLISHED = {
    "MAR-H with MAR-B": {4: 1.62, 8: 1.96, 16: 2.20, 32: 2.33},
    "MAR-L with MAR-B": {4: 1.15, 8: 1.32, 16: 1.42, 32: 1.49},
}


def describe(row: Mapping) -> str:
    """The setting of a row in words."""
    steps = f"{row['num_iter']} steps" if row["num_iter"] else "one token a step"
    return f"batch {row['batch']}, guidance {row['guidance']:g}, {steps}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    """The page of a bench file."""
    published = published_notes() if result["env"]["suite"] == "published" else ()
    return suite_page(SUITES, result, COLUMNS, BY, _title, (*summary(result["rows"]), *published))


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    size = f"{first['values']} tokens of {first['head_steps']} denoising steps"
    apart = f"two draws of a token {first['draw_spread']} as far apart as tokens at random"
    return f"{describe(first)}: {', '.join([*counts(rows, 'requests'), size, apart])}"


def summary(rows: Sequence[dict]) -> list[str]:
    """Sentences on the fastest rows, and on how far predictions of windows were off."""
    # rows that must be plain decoding bit for bit are there to show that they are
    done = [row for row in rows if row.get("speedup_vs_ar") and row["identical"] is None]
    relaxed = [row for row in done if not row["exact"]]
    groups = {
        "fastest exact method": [row for row in done if row["exact"]],
        "fastest relaxed method": relaxed,
        "fastest relaxed method within 5 % of plain's own Frechet distance": list(filter(near_plain, relaxed)),
    }
    made = best_rows(groups, describe)
    for key, formula in (
        ("predicted_speedup", "gamma / (gamma c + 1)"),
        ("predicted_in_full", "what follows with v, a window's pass over a plain one, and the passes without a draft"),
    ):
        off = [row["speedup_vs_ar"] / row[key] for row in done if row.get(key)]
        if off:
            made.append(f"patched windows came to {min(off):.2f} to {max(off):.2f} of {formula}")
    return made


def published_notes() -> list[str]:
    """What the paper says, to be read beside c and not beside seconds."""
    made = []
    for pair, speeds in PUBLISHED.items():
        shown = ", ".join(f"gamma {gamma} {speed}x" for gamma, speed in speeds.items())
        made.append(f"published for {pair} on one A100 at batch 256: {shown}; at the c that gamma 32 implies, "
                    f"{_implied(32, speeds[32]):.3f}, gamma / (gamma c + 1) gives gamma 4 "
                    f"{4 / (4 * _implied(32, speeds[32]) + 1):.2f}x")  # fmt: skip
    return made


def _implied(gamma: int, speed: float) -> float:
    """c for which gamma / (gamma c + 1) is this speed-up."""
    return 1 / speed - 1 / gamma


def panels(result: dict) -> list[Panel]:
    """Frechet distance against speed-up: a line per family of knobs, a point per other method.   Raises ValueError for a
    suite without a plot."""
    plot_of(SUITES, result)
    settings = grouped(result["rows"], lambda row: tuple(row[one] for one in BY), "frechet", "speedup_vs_ar")
    return [
        Panel(f"{describe(rows[0])}, {rows[0]['images']} images", SPEEDUP, "Frechet distance from plain decoding's images",
              _lines(rows), _clouds(rows), _front(rows))
        for rows in settings.values()
    ]  # fmt: skip


def _lines(rows: Sequence[dict]) -> dict[str, Line]:
    """A line for each family with a knob, from lowest to highest, and plain decoding."""
    xs = [row["speedup_vs_ar"] for row in rows]
    own = rows[0]["frechet_ar"]
    alone = [row for row in rows if not _is_stacked(row)]
    swept = lines_of(alone, lambda row: row["family"] or row["method"], "speedup_vs_ar", "frechet")
    return {"plain's own split halves": ((min(xs), max(xs)), (own, own)), **swept}


def _clouds(rows: Sequence[dict]) -> dict[str, Line]:
    """The schedules and their combinations, those that draft apart from those that do not."""
    names = {True: "CSpD with schedules", False: "schedules alone"}
    stacked = [row for row in rows if _is_stacked(row)]
    return lines_of(stacked, lambda row: names[row["gamma"] is not None], "speedup_vs_ar", "frechet")


def _is_stacked(row: dict) -> bool:
    return row["knob"] is None and bool(row["family"])


def _front(rows: Sequence[dict]) -> list[tuple[float, float, str]]:
    """Methods that none beats both in speed and in distance, of those within 1 % in speed the nearest; those slower than plain
    decoding are not named."""
    best, front = float("inf"), []
    for row in sorted(rows, key=lambda row: (-row["speedup_vs_ar"], row["frechet"])):
        if row["frechet"] < best and row["speedup_vs_ar"] >= 1:
            best = row["frechet"]
            front.append((row["speedup_vs_ar"], best, row["method"]))
    named: list[tuple[float, float, str]] = []
    for point in reversed(front):
        if not named or point[0] > 1.01 * named[-1][0]:
            named.append(point)
    return named


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
