"""`mmspec bench image`: plain and drafted decoding of an image model, exact and relaxed; speed, quality, and both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import numpy as np

from mmspec.evaluate.bench import completed, interleave
from mmspec.evaluate.bench_log import BenchLog
from mmspec.evaluate.fingerprint import fingerprint
from mmspec.evaluate.image_certainty import target_figures
from mmspec.evaluate.image_config import ImageBench
from mmspec.evaluate.image_judged import BATCH, Reference
from mmspec.evaluate.image_methods import PLAIN, ImageMethod, Setting, runner_or_failure
from mmspec.evaluate.image_prompts import Asked, asked_of
from mmspec.evaluate.image_rows import add_identity, timed_row
from mmspec.evaluate.image_shelf import ImageShelf, zoo_shelf
from mmspec.evaluate.image_suites import ImageSuite, image_suite_of
from mmspec.evaluate.machine import environment, machine, threads

JUDGED = ("images", "frechet", "frechet_interval", "frechet_ar", "frechet_ratio", "frechet_ratio_interval", "clip_score",
          "retrieval", "judge")  # fmt: skip
Told = Callable[[str], None]


def bench_image(
    config: ImageBench,
    shelf: ImageShelf | None = None,
    on_run: Told = lambda text: None,
    log: Path | None = None,
) -> dict:
    """{"env": ..., "rows": [...]}: one row per method, batch size, guidance, top-k and temperature. on_run is told what ran.

    Timed rows are medians over the same prompts, interleaved with plain decoding, pixels included. Quality figures are of
    as many images as plain decoding's two sets have each; where a suite does both, they stand in the timed rows. A method
    that fails gets a row with the reason instead of figures. log: where finished settings of what is timed and finished rows
    of what is judged are kept, and found again, see `BenchLog`.
    """
    suite = image_suite_of(config.suite)
    shelf = shelf or zoo_shelf(config.model)
    with threads(config.threads), _log(log, config, shelf) as kept:
        timed = _timed(config, shelf, on_run, kept) if suite.timed else []
        judged = _judged(config, shelf, on_run, kept) if suite.judged else []
    rows = _joined(timed, judged) if suite.timed else judged
    return {"env": _env(config, shelf, suite), "rows": rows}


def _log(file: Path | None, config: ImageBench, shelf: ImageShelf) -> BenchLog:
    if file is None:
        return BenchLog(None, {})
    methods = [method.key for method in config.rows]
    about = {"bench": "image", "settings": asdict(config), "methods": methods, "model": shelf.name}
    return BenchLog(file, {**about, "code": fingerprint(), "machine": machine()})


def _timed(config: ImageBench, shelf: ImageShelf, on_run: Told, kept: BenchLog) -> list[dict]:
    asked = asked_of(config.model, config.prompts, config.seed)
    rows: list[dict] = []
    for size in config.batches:
        cases = [asked[i : i + size] for i in range(0, len(asked) - size + 1, size)]
        for setting in config.settings(greedy=True):
            part = {"timed": {"batch": size, **setting.row()}}
            timed = (config, shelf, cases, setting, on_run)
            rows += kept.once(part, partial(_timed_setting, *timed), partial(_skip_setting, *timed))
    return rows


def _timed_setting(
    config: ImageBench, shelf: ImageShelf, cases: list[list[Asked]], setting: Setting, on_run: Told
) -> list[dict]:
    """The timed rows of one batch size and setting."""
    size, methods = len(cases[0]), config.serving(setting)
    results = interleave(
        cases,
        {method.key: runner_or_failure(method, shelf, setting) for method in methods},
        repeats=config.repeats,
        seed=config.seed,
        on_run=lambda key: on_run(f"batch {size}, {setting}, {key}"),
    )
    shared = {"model": config.model, "batch": size, **setting.row(), "prompts": len(cases) * size, "seed": config.seed}
    codes = np.array([image for run in completed(results[PLAIN]) for image in run.output])
    shared |= target_figures(shelf, setting, [one for case in cases for one in case], codes, config.seed)
    rows = {method.key: timed_row(method, results, shared) for method in methods}
    if setting.temperature == 0:
        add_identity(rows, results, cases, shelf, setting)
    return list(rows.values())


def _skip_setting(
    config: ImageBench, shelf: ImageShelf, cases: list[list[Asked]], setting: Setting, on_run: Told
) -> None:
    """Tells of the requests of a setting whose rows are kept."""
    for _ in range(len(config.serving(setting)) * (len(cases) * config.repeats + 1)):
        on_run(f"batch {len(cases[0])}, {setting}, kept")


def _judged(config: ImageBench, shelf: ImageShelf, on_run: Told, kept: BenchLog) -> list[dict]:
    rows: list[dict] = []
    asked = asked_of(config.model, config.images, config.seed)
    for setting in config.settings(greedy=False):
        shared = {"model": config.model, "batch": min(BATCH, config.images), **setting.row(), "images": config.images,
                  "seed": config.seed}  # fmt: skip
        # made once in a setting, and not at all where every row is kept
        reference = cache(partial(Reference, config.rows[0], shelf, setting, asked, config.seed))
        for method in config.serving(setting):
            part = {"judged": {"method": method.key, **setting.row()}}
            rows.append(kept.once(part, partial(_judge, reference, method, shared)))
            on_run(f"{setting}, {config.images} images, {method.key}")
    return rows


def _judge(reference: Callable[[], Reference], method: ImageMethod, shared: dict) -> dict:
    return reference().judge(method, shared)


def _joined(timed: list[dict], judged: list[dict]) -> list[dict]:
    """Timed rows with the quality figures of their method and setting."""
    names = ("key", "guidance", "top_k", "temperature")
    found = {tuple(row[name] for name in names): row for row in judged}
    for row in timed:
        other = found.get(tuple(row[name] for name in names), {})
        row |= {name: other.get(name) for name in JUDGED}
        row["judged_batch"], row["judged_step_compression"] = other.get("batch"), other.get("step_compression")
        row["failed"] = row["failed"] or other.get("failed")
    return timed


def _env(config: ImageBench, shelf: ImageShelf, suite: ImageSuite) -> dict:
    model = shelf.pipeline.model
    return environment(
        bench="image",
        suite=config.suite,
        model=shelf.name,
        dtype=str(model.dtype).removeprefix("torch."),
        values=model.geometry.total,
        codes=model.codes,
        prompts=config.prompts if suite.timed else None,
        images=config.images if suite.judged else None,
        repeats=config.repeats,
        seed=config.seed,
        timing="whole calls with prefill and pixels; medians of paired ratios; spread: 10th and 90th percentile",
        quality="Frechet distances in the zoo's CLIP space at equal numbers of images, to two sets of plain ones; intervals: "
        "90 % bootstrap; retrieval among 32 prompts; judge: share of asked objects whose color and shape are found",
    )


def verdict(result: dict) -> list[str]:
    """What is wrong with a finished bench: exact rows unlike plain decoding at T = 0 but for ties, and failed methods."""
    wrong = []
    for row in result["rows"]:
        where = f"{row['method']} (batch {row['batch']}, guidance {row['guidance']:g}, T = {row['temperature']:g})"
        same, _, of = (row.get("identical") or "0/0").partition("/")
        if row["exact"] and int(same) + row.get("ties", 0) != int(of):
            wrong.append(f"{where}: expected the codes of plain decoding, got them in {same} of {of} requests")
        if row["failed"]:
            wrong.append(f"{where}: {row['failed']}")
    return wrong
