"""`mmspec bench image`: plain and drafted decoding of an image model, exact and relaxed; speed, quality, and both."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmspec.evaluate.bench import completed, interleave
from mmspec.evaluate.image_certainty import target_figures
from mmspec.evaluate.image_config import ImageBench
from mmspec.evaluate.image_judged import BATCH, Reference
from mmspec.evaluate.image_log import RowLog
from mmspec.evaluate.image_methods import PLAIN, Setting, runner_or_failure
from mmspec.evaluate.image_prompts import Asked, asked_of
from mmspec.evaluate.image_rows import add_identity, timed_row
from mmspec.evaluate.image_shelf import ImageShelf, zoo_shelf
from mmspec.evaluate.image_suites import ImageSuite, image_suite_of
from mmspec.evaluate.machine import environment, threads

JUDGED = ("images", "frechet", "frechet_interval", "frechet_ar", "frechet_ratio", "frechet_ratio_interval", "clip_score",
          "retrieval", "judge")  # fmt: skip
Told = Callable[[str], None]


def bench_image(config: ImageBench, shelf: ImageShelf | None = None, on_run: Told = lambda text: None) -> dict:
    """{"env": ..., "rows": [...]}: one row per method, batch size, guidance, top-k and temperature. on_run is told what ran.

    Timed rows are medians over the same prompts, interleaved with plain decoding, pixels included. Quality figures are of
    as many images as plain decoding's two sets have each; where a suite does both, they stand in the timed rows. A method
    that fails gets a row with the reason instead of figures.
    """
    suite = image_suite_of(config.suite)
    with threads(config.threads):
        shelf = shelf or zoo_shelf(config.model)
        timed = _timed(config, shelf, on_run) if suite.timed else []
        judged = _judged(config, shelf, on_run) if suite.judged else []
    rows = _joined(timed, judged) if suite.timed else judged
    return {"env": _env(config, shelf, suite), "rows": rows}


def _timed(config: ImageBench, shelf: ImageShelf, on_run: Told) -> list[dict]:
    asked = asked_of(config.model, config.prompts, config.seed)
    rows: list[dict] = []
    for size in config.batches:
        cases = [asked[i : i + size] for i in range(0, len(asked) - size + 1, size)]
        for setting in config.settings(greedy=True):
            rows += _timed_setting(config, shelf, cases, setting, on_run)
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


def _judged(config: ImageBench, shelf: ImageShelf, on_run: Told) -> list[dict]:
    log, rows = RowLog(config.log), []
    asked = asked_of(config.model, config.images, config.seed)
    for setting in config.settings(greedy=False):
        shared = {"model": config.model, "batch": min(BATCH, config.images), **setting.row(), "images": config.images,
                  "seed": config.seed}  # fmt: skip
        reference: Reference | None = None
        for method in config.serving(setting):
            row = log.find({"key": method.key, **shared})
            if row is None:
                reference = reference or Reference(config.rows[0], shelf, setting, asked, config.seed)
                row = reference.judge(method, shared)
                log.add(row)
            rows.append(row)
            on_run(f"{setting}, {config.images} images, {method.key}")
    return rows


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
