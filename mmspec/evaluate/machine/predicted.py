"""Predicted against measured speedups on this machine: a probe and counted operators, and benches in the same run."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod, sqrt
from os import getloadavg
from typing import Any

import torch

from mmspec import vlm
from mmspec.core.round.loop import DecodingRun
from mmspec.estimate.counting import CountedRequest, count_request, count_work, own_clock
from mmspec.estimate.device import Device
from mmspec.estimate.probe import probe
from mmspec.estimate.work import NOTHING, Work
from mmspec.evaluate.base.provenance import environment, threads
from mmspec.evaluate.continuous.figures import pipeline_arguments
from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.engine.registry import config_of, domain_of
from mmspec.evaluate.engine.runs import Runner
from mmspec.evaluate.engine.suite import Method, Setting
from mmspec.evaluate.vlm.runner import generation_arguments
from mmspec.run.timed_run import TimedRun

LIMIT = 0.15  # the error that an estimate aims for
_EVERY = {"vlm": 4, "image": 6, "continuous": 4}  # the interval between counted rounds of a request
_ALL = 1 << 20  # more rounds than any request has
_TIMED = {"vlm": 3, "image": 1, "continuous": 0}  # timings of the target's pass in a counted round


@dataclass(frozen=True, slots=True)
class PredictedCase:
    """Rows of a bench that are predicted."""

    domain: str
    name: str  # the model and its task, in words
    options: Mapping[str, Any]  # fields of the bench's config
    baseline: str = "ar"  # the key of the row of plain decoding
    # fields of the config that all cases share
    shared: Mapping[str, Any] = field(default_factory=lambda: {"batches": (1,)})

    def config(self, prompts: int, repeats: int, count: int) -> Any:
        return config_of(self.domain)(prompts=prompts, repeats=repeats, threads=count, **self.shared, **self.options)


def _text(name: str, suite: str, model: str, task: str, *methods: str, **more: Any) -> PredictedCase:
    options = {
        "suite": suite,
        "model": model,
        "task_names": (task,),
        "temperatures": (0.0,),
        "methods": methods,
        **more,
    }
    return PredictedCase("vlm", name, options, "plain")


def _images(domain: str, name: str, model: str, *methods: str, **more: Any) -> PredictedCase:
    return PredictedCase(
        domain, name, {"suite": "speed", "model": model, "temperatures": (1.0,), "methods": methods, **more}
    )


CASES = (
    _text("vlm, captions", "drafters", "vlm", "captions", "eagle", "msd", "vispec", "flash", "specvlm", "dspark", "random"),
    _text("vlm/hybrid, captions", "hybrid", "vlm/hybrid", "captions", "dflash", "mtp", "lookup", "recycling"),
    _text("smollm2, editing", "real", "smollm2", "editing", "lookup", "eagle3-chain-3", "eagle3-tree-16", "recycling",
          new_tokens=64),
    _images("image", "t2i", "t2i", "sjd-16", "scd-gumbel-32", "eagle-chain", "eagle-tree", guidance=(1.0,), top_k=(0,)),
    _images("image", "c2i", "c2i", "scd-gumbel-16", "scd-gumbel-32", guidance=(1.0,), top_k=(0,)),
    _images("continuous", "mar", "mar", "cspd-patch-derived-4", "cspd-patch-derived-16", "cspd-truncate-derived-8",
            guidance=(2.0,), num_iter=(64,)),
)  # fmt: skip


def validate(
    prompts: int = 6,
    repeats: int = 2,
    seconds: float = 20.0,
    thread_count: int = 1,
    cases: tuple[PredictedCase, ...] = CASES,
    on_part: Callable[[str], None] = lambda text: None,
) -> dict:
    """Predict speedups from a probe, counted operators and accept lengths, and measure them in the same run; return
    `env` and `rows`. A probe runs before and after every case, since a busy machine changes; a prediction is the mean
    of both. `seconds` are those of the two probes around a case. `on_part` gets the name of every finished case.

    A row has the accept length, `measured` and its spread, `predicted` from the probe and counted operators, `timed`
    where passes of the target were timed as well, and the errors of both."""
    rows: list[dict] = []
    load: list[float] = []
    with threads(thread_count), torch.no_grad():
        for case in cases:
            load.append(getloadavg()[0])
            rows += _case_rows(case, seconds / 2, case.config(prompts, repeats, thread_count))
            on_part(case.name)
        env = environment(bench="estimate", prompts=prompts, repeats=repeats, load=[min(load), max(load)])
    return {"env": env, "rows": rows}


def _case_rows(case: PredictedCase, seconds: float, config: Any) -> list[dict]:
    """Measure and predict the rows of a case, with a probe of `seconds` before and after."""
    before, domain = probe(seconds), domain_of(case.domain)
    resources = domain.resources(config)
    measured = {row["key"]: row for row in bench(_on_own_clock(domain), config, resources)["rows"]}
    devices = (before, probe(seconds))
    setting = next(iter(config.settings()))
    first, plain = domain.cases(resources, setting)[0], None
    rows = []
    for method in sorted(config.serving(setting), key=lambda method: method.key != case.baseline):
        row = measured[method.key]
        if getattr(method, "engine", "mmspec") != "mmspec" or row["failed"]:
            continue
        counted, pixels = _counted(case.domain, method, resources, setting, first)
        if plain is None:
            plain = (row, counted, pixels)
            continue
        both = [
            (_RequestSeconds.of(device, *plain, plain[1]), _RequestSeconds.of(device, row, counted, pixels, plain[1]))
            for device in devices
        ]
        rows.append(_row(case, row, both, counted))
    return rows


def _on_own_clock(domain: Domain) -> Domain:
    """Return the domain with requests timed by the clock of the probe."""

    def runner(method: Method, resources: Any, setting: Setting) -> Runner:
        run, clock = domain.runner(method, resources, setting), own_clock()

        def timed(case: Any, seed: int) -> TimedRun:
            began = clock()
            timed_run = run(case, seed)
            return dataclasses.replace(timed_run, seconds=clock() - began)

        return timed

    timed = copy.copy(domain)
    timed.runner = runner
    return timed


def _row(
    case: PredictedCase, row: Mapping, both: list[tuple[_RequestSeconds, _RequestSeconds]], counted: CountedRequest
) -> dict:
    """Return a line of the table from the seconds of plain and drafted decoding by each probe."""
    predicted = sqrt(prod(plain.token() / drafted.token() for plain, drafted in both))
    timed = None
    if counted.passed is not None:
        timed = sqrt(prod(plain.token() / drafted.token(counted.passed * plain.target) for plain, drafted in both))
    actual = row["speedup_vs_ar"]
    errors = [None if ratio is None else round(ratio / actual - 1, 3) for ratio in (predicted, timed)]
    return {
        "case": case.name, "domain": case.domain, "method": row["method"], "key": row["key"], "exact": row["exact"],
        "accept_length": row["accept_length"], "operators": round(counted.round.calls + counted.round.views),
        "measured": actual, "spread": row.get("spread_vs_ar") or row["spread"],
        "predicted": round(predicted, 3), "predicted_error": errors[0],
        "timed": None if timed is None else round(timed, 3), "timed_error": errors[1],
        "pass_ratio": counted.passed, "seconds": [{"plain": asdict(a), "drafted": asdict(b)} for a, b in both],
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _RequestSeconds:
    """The estimated seconds of a request."""

    around: float  # of its prefill and its pixels
    target: float  # of a round's target pass
    rest: float  # of the rest of a round
    rounds: float  # their number after the prefill
    tokens: float  # their number

    @classmethod
    def of(
        cls, device: Device, row: Mapping, counted: CountedRequest, pixels: Work, plain: CountedRequest
    ) -> _RequestSeconds:
        """Price a request of the bench's row, which gives tokens and accept length, by its counted work and that of
        decoding its pixels; `plain` is the work of plain decoding."""

        def price(work: Work) -> float:
            return device.seconds(work, "float32", counted.weights)

        # operators that plain decoding has in its rounds too take as long as there
        calls, views = (
            max(getattr(counted.rest, name) - getattr(plain.rest, name), 0.0) for name in ("calls", "views")
        )
        slower = (device.drafting - 1) * price(Work(calls=calls, views=views))
        return cls(
            price(counted.prefill) + price(pixels) + device.request,
            price(counted.target),
            price(counted.rest) + slower + device.round,
            row["tokens"] / row["accept_length"] - 1,
            row["tokens"],
        )

    def token(self, target: float | None = None) -> float:
        """Return the seconds of a token; `target` replaces the estimated seconds of a target pass."""
        return (self.around + self.rounds * (self.rest + (self.target if target is None else target))) / self.tokens


def _counted(domain: str, method: Method, resources: Any, setting: Setting, case: Any) -> tuple[CountedRequest, Work]:
    """Return the work of a request and of its pixels."""
    run, to_pixels = _request(domain, method, resources, setting, case)
    for _ in range(3):  # caches and graphs are built before counting
        run.step()
    run, to_pixels = _request(domain, method, resources, setting, case)
    counted = count_request(run, _ALL, _TIMED[domain], _EVERY[domain])
    return counted, NOTHING if to_pixels is None else count_work(to_pixels)


def _request(
    domain: str, method: Any, resources: Any, setting: Any, case: Any
) -> tuple[DecodingRun, Callable[[], object] | None]:
    """Return a request that has not begun, and the function that decodes its pixels."""
    if domain == "vlm":
        arguments = generation_arguments(resources, setting)
        run = vlm.start(
            resources.model, drafter=method.build_drafter(resources), rule=method.rule, seed=0, **case, **arguments
        )
        return run, None
    pipe, prompts = resources.pipeline, [request.prompt for request in case]
    if domain == "image":
        options = {"decoding": method.make(resources), "rule": method.rule_of(resources), **setting.arguments()}
    else:
        options = method.make(resources) | pipeline_arguments(resources, setting)
    run = pipe.start(prompts, seed=0, **options)
    return run, lambda: pipe.to_videos(pipe.tokens(run.target), {})
