"""A bench from settings to rows, for every domain; finished work is stored and reused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from mmspec.evaluate.base.provenance import environment, fingerprint, machine, threads
from mmspec.evaluate.engine.config import BenchConfig
from mmspec.evaluate.engine.domain import Domain, QualityReference, TimedSetting
from mmspec.evaluate.engine.resume_log import BenchLog
from mmspec.evaluate.engine.rows import judged_row, timed_row
from mmspec.evaluate.engine.runs import interleave, runner_or_failure
from mmspec.evaluate.engine.suite import CellGroup, Method, Setting

ProgressCallback = Callable[[str], None]


def bench(
    domain: Domain,
    config: BenchConfig,
    resources: Any = None,
    *,
    on_run: ProgressCallback = lambda text: None,
    on_part: ProgressCallback = lambda text: None,  # called for every finished timed setting and judged row
    log: Path | None = None,  # the file of the resume log, see `BenchLog`
) -> dict:
    """Run a bench and return {"env": ..., "rows": [...]}, with a row per method and setting. Timed rows are medians
    over the same requests, interleaved with the baselines. Quality figures are merged into the timed rows where a suite
    measures both. A method that fails gets a row with the reason."""
    resources = domain.resources(config) if resources is None else resources
    code = fingerprint(config.folders())
    with threads(config.threads), _log(log, domain, config, resources, code) as records:
        running = _BenchRun(domain, config, resources, records, on_run, on_part)
        timed, judged = running.timed(), running.judged()
        extras = domain.extras(config, resources, records)
        own = {"repeats": config.repeats, "seed": config.seed, "code": code}
        env = environment(bench=domain.name, suite=config.suite, **own, **domain.environment(config, resources))
    rows = _both(config, timed, judged, domain.quality)
    return {"env": env, "rows": [*rows, *domain.united(config, rows)], **extras}


def _both(config: BenchConfig, timed: list[dict], judged: list[dict], quality: Mapping[str, str]) -> list[dict]:
    """Return the rows of a bench that times, judges, or does both; quality does not depend on the batch size."""
    apart = {name for setting in config.judged() for name in setting.name()} - {"batch"}
    return join_quality(timed, judged, sorted(apart), quality) if timed else judged


def _log(file: Path | None, domain: Domain, config: BenchConfig, resources: Any, code: str) -> BenchLog:
    settings = {**asdict(config), "threads": torch.get_num_threads()}
    about = {"bench": domain.name, "settings": settings, "methods": [method.key for method in config.rows]}
    own = {"model": resources.name, "code": code, "seed": config.seed, "machine": machine()}
    return BenchLog(file, json.loads(json.dumps({**about, **own}, default=str)))


@dataclass(frozen=True, slots=True)
class _BenchRun:
    domain: Domain
    config: BenchConfig
    resources: Any
    log: BenchLog
    on_run: ProgressCallback
    on_part: ProgressCallback

    def timed(self) -> list[dict]:
        rows: list[dict] = []
        for setting in self.config.settings():
            where = self.domain.describe(setting.name())
            make, skip = partial(self._time, setting, where), partial(self._skip, setting, where)
            rows += self._once({"timed": setting.name()}, where, make, skip)
        return rows

    def judged(self) -> list[dict]:
        rows: list[dict] = []
        for setting in self.config.judged():
            where = self.domain.describe(setting.name())
            # computed once per setting, and skipped where every row is stored
            reference = cache(partial(self.domain.reference, self.config, self.resources, setting))
            for method in self.config.serving(setting):
                part = {"judged": {"method": method.key, **setting.name()}}
                make = partial(self._judge, reference, method, setting)
                rows.append(self._once(part, f"{where}, quality of {method.key}", make))
                self.on_run(f"{where}, quality of {method.key}")
        return rows

    def _once(self, part: dict, text: str, make: Callable[[], Any], skip: Callable[[], None] = lambda: None) -> Any:
        began, skips = perf_counter(), []
        value = self.log.once(part, make, lambda: skips.append(skip()))
        self.on_part(f"{text}: {'kept' if skips else f'{perf_counter() - began:.1f} s'}")
        return value

    def _time(self, setting: Setting, where: str) -> list[dict]:
        """Run the methods of a setting in turn and return their rows."""
        methods, config = self.config.serving(setting), self.config
        cases, domain = self.domain.cases(self.resources, setting), self.domain
        group = CellGroup(domain.name, self.resources.name, setting, tuple(methods), setting.name(), domain.shows)
        runners = {
            method.key: runner_or_failure(partial(self.domain.runner, method, self.resources, setting))
            for method in methods
        }
        results = interleave(
            cases,
            runners,
            repeats=config.repeats,
            seed=config.seed,
            on_run=lambda key: self.on_run(f"{where}, {key}"),
            store=self.log.samples(group),
        )
        timed = TimedSetting(config, self.resources, setting, methods, cases, results)
        shared, greedy = {**setting.row(), **self.domain.certainty(timed)}, setting.temperature == 0
        rows = {method.key: timed_row(method, results, config.baselines, shared, greedy) for method in methods}
        self.domain.complete(timed, rows)
        return list(rows.values())

    def _skip(self, setting: Setting, where: str) -> None:
        """Count the requests of a setting whose rows are stored."""
        for _ in range(self.config.timed_requests(setting)):
            self.on_run(f"{where}, kept")

    def _judge(self, reference: Callable[[], QualityReference], method: Method, setting: Setting) -> dict:
        return judged_row(method, reference(), setting.row())


def join_quality(timed: list[dict], judged: list[dict], names: Sequence[str], quality: Mapping[str, str]) -> list[dict]:
    """Add the quality figures of each method and setting to its timed row, in place; None where there are none. `names`
    distinguish settings. `quality` maps names in timed rows to the fields of judged rows."""
    apart = ("key", *names)
    judged_by_key = {tuple(row[name] for name in apart): row for row in judged}
    for row in timed:
        other = judged_by_key.get(tuple(row[name] for name in apart), {})
        row |= {name: other.get(there) for name, there in quality.items()}
        row["failed"] = row["failed"] or other.get("failed")
    return timed
