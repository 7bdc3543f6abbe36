"""The domain of images of codes: how a request runs, its rows, tables and curves, and its sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from PIL.Image import Image

from mmspec import zoo
from mmspec.evaluate.engine.domain import SamplingOverrides, TimedSetting
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.engine.rows import Margin, parting
from mmspec.evaluate.engine.runs import Sampler, TimedRun, completed
from mmspec.evaluate.engine.statistics import middle
from mmspec.evaluate.image.config import ImageBenchConfig, ImageSetting
from mmspec.evaluate.image.figures import codes_run, margin_at, observe_laws, target_figures
from mmspec.evaluate.image.resources import (
    ImageResources,
    decoding_names,
    decoding_of,
    folder_resources,
    zoo_resources,
)
from mmspec.evaluate.image.suites import SUITES, SWEPT, ImageMethod
from mmspec.evaluate.model_kinds import IMAGE_MODELS
from mmspec.evaluate.pictures import (
    COLUMNS,
    PLAIN,
    GenerationRequest,
    PictureDomain,
    caption_prompts,
    class_prompts,
    requests_of,
)
from mmspec.evaluate.quality.gallery import QUALITY
from mmspec.evaluate.report.bench_page import Page, best_rows, counts, figure, near_plain, suite_page
from mmspec.evaluate.report.plots import Line, Panel, grouped, lines_of, plot_of
from mmspec.methods import MethodCall, parse

BY = ("batch", "guidance", "top_k", "temperature")
AXES = ("values a target pass", "Frechet distance from plain decoding's images")
TIMING = "whole calls with prefill and pixels; medians of paired ratios; spread: 10th and 90th percentile"
COLUMNS = {**COLUMNS, "step compression": figure("step_compression")}
GUIDANCE = 4.0  # of the zoo's models, as benches judge them; a model of a folder has its own


class ImageDomain(PictureDomain):
    """Image models whose tokens are codes, of the zoo or of folders."""

    name, config, suites, models = "image", ImageBenchConfig, SUITES, IMAGE_MODELS
    output = "codes of plain decoding"

    def open(self, model: str, config: ImageBenchConfig | None = None) -> ImageResources:
        return zoo_resources(model) if model in IMAGE_MODELS else folder_resources(Path(model))

    def requests(self, resources: ImageResources, setting: ImageSetting) -> list[GenerationRequest]:
        return requests_of(setting.model, setting.prompts, setting.seed)

    def arguments(self, method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> dict[str, Any]:
        return {"decoding": method.make(resources), "rule": method.rule_of(resources), **setting.arguments()}

    def sampler(self, method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> Sampler:
        """The time of a batch of requests includes the pixels."""
        draw = self.draw(method, resources, setting)

        def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
            began = perf_counter()
            out = draw(asked, seed)
            return codes_run(out, perf_counter() - began), out.images

        return run

    figures = staticmethod(target_figures)

    def complete(self, timed: TimedSetting, rows: Mapping[str, dict]) -> None:
        """Add the values a pass, the drafter's passes, and where greedy rows differ at ties only."""
        for method in timed.methods:
            row, own = rows[method.key], timed.results[method.key]
            row["step_compression"] = row["accept_length"]
            row["drafter_passes"] = middle([run.drafter_passes for run in completed(own)], 1)
            if timed.setting.temperature == 0:
                row |= parting(timed.results[PLAIN], own, lambda case: _margin(timed, case))

    def environment(self, config: ImageBenchConfig, resources: ImageResources) -> dict:
        model, suite = resources.model, config.plan()
        return {
            "model": resources.name,
            "dtype": str(model.dtype).removeprefix("torch."),
            "values": model.geometry.total,
            "codes": model.codes,
            "prompts": config.prompts if suite.timed else None,
            "images": config.images if suite.judged else None,
            "timing": TIMING,
            "quality": QUALITY,
        }

    def describe(self, row: Mapping) -> str:
        return f"batch {row['batch']}, guidance {row['guidance']:g}, top-k {row['top_k']}, T = {row['temperature']:g}"

    def page(self, result: dict) -> Page:
        return suite_page(SUITES, result, COLUMNS, BY, _title, summary(result["rows"]))

    def panels(self, result: dict) -> list[Panel]:
        """Frechet distance against step compression: a line per family of knobs, a point per exact method.

        Plain decoding is at 1; a level line is its own split-half distance.
        """
        plot_of(SUITES, result)
        title = "guidance {:g}, top-k {}, T = {:g}, {} images"
        settings = grouped(result["rows"], _drawn, "frechet")
        return [Panel(title.format(*drawn, rows[0]["images"]), *AXES, _lines(rows)) for drawn, rows in settings.items()]

    def defaults(self, model: str) -> list[tuple[str, str]]:
        """Exact decodings, and relaxed ones at several settings; the trained drafter where the model has one."""
        return [one for one in SWEPT if one[0] != "eagle" or f"{model}/eagle" in zoo.names()]

    def method(self, model: str, decoding: str, rule: str) -> ImageMethod:
        """A decoding of `mmspec image` with its settings, "sjd:window=32,init=up", or a row of the benches by its key."""
        judged = parse(rule, "image", "rule", "--rule") if rule else None
        row = self.row(decoding) if decoding not in decoding_names() else None
        if row is not None:
            return replace(row, rule=rule or row.rule, title=_judged_title(row.title, judged))
        drafts = decoding_of(decoding)
        own, title = judged or drafts.rule, _judged_title(drafts.title, judged)
        return ImageMethod(decoding, title, "exact" if own is None else str(own), decoding=str(drafts.drafts))

    def drawn(self, model: str, wishes: SamplingOverrides) -> dict[str, Any]:
        zoos = model in IMAGE_MODELS
        return wishes.given(guidance=GUIDANCE if zoos else None, top_k=0 if zoos else None)

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        return class_prompts(count, seed) if model == "c2i" else caption_prompts(count, seed)

    def case(self, resources: ImageResources, setting: Any, prompt: EvaluationPrompt) -> list[GenerationRequest]:
        text = prompt.text if prompt.label is None or resources.draws_texts else str(prompt.label)
        return [GenerationRequest(resources.given([text])[0], prompt.text)]


DOMAIN = ImageDomain()


def _margin(timed: TimedSetting, case: int) -> Margin:
    """By how much plain decoding preferred its values in a case to the likeliest others."""
    watched = observe_laws(timed.resources, timed.setting, timed.cases[case], 0)
    return lambda row, place, other: margin_at(watched, row, place)


def _judged_title(decoding: str, rule: MethodCall | None) -> str:
    """What tables call a decoding under a rule: "SJD (window 32) + LANTERN (delta 0.2)"; the usual exact rule has no name."""
    return decoding if rule is None or rule.method.name == "exact" else f"{decoding} + {rule.title}"


def _drawn(row: dict) -> tuple:
    """How the values of a row were drawn, whatever its batch size."""
    return tuple(row[name] for name in BY[1:])


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    sure = f"mean top-1 probability {first['top1_probability']}"
    used = f"{first['codes_used']} of {first['codes']} codes used (perplexity {first['code_perplexity']})"
    return f"{DOMAIN.describe(first)}: {', '.join([*counts(rows), sure, used])}"


def summary(rows: Sequence[dict]) -> list[str]:
    """Sentences on the best rows, and on what a batch leaves of a method's step compression."""
    done = [row for row in rows if row["temperature"] > 0 and row.get("step_compression") and row["key"] != "ar"]
    exact, close = [row for row in done if row["exact"]], [row for row in done if not row["exact"] and near_plain(row)]
    timed = [row for row in exact if row.get("speedup_vs_ar")]
    near = "most steps saved by a relaxed method within 5 % of plain's own Frechet distance"
    return [
        *best_rows({"most steps saved by an exact method": exact}, DOMAIN.describe, "step_compression"),
        *best_rows({"fastest exact method": timed}, DOMAIN.describe),
        *best_rows({near: close}, DOMAIN.describe, "step_compression"),
        *_automatic(rows),
        *_batches(done),
    ]


def _automatic(rows: Sequence[dict]) -> list[str]:
    """How far below plain decoding, and below the best exact row of its setting, the controller ever fell."""
    timed = [row for row in rows if row.get("speedup_vs_ar") and row["exact"]]
    own = [row for row in timed if row["key"] == "auto"]
    if not own:
        return []
    made = []
    for what, base in (("plain decoding", 1.0), ("the fastest exact row", None)):
        ratios = [(row["speedup_vs_ar"] / (base or _fastest(timed, row)), row) for row in own]
        least, row = min(ratios, key=lambda pair: pair[0])
        made.append(f"auto against {what}: {least:.3f}x at least, over {len(own)} rows ({_where(row)})")
    return made


def _fastest(rows: Sequence[dict], row: dict) -> float:
    """The best ratio of the setting a row belongs to, its own left out; plain decoding's is 1."""
    setting = [one for one in rows if [one[name] for name in BY] == [row[name] for name in BY]]
    return max((one["speedup_vs_ar"] for one in setting if one["key"] != row["key"]), default=1.0)


def _batches(rows: Sequence[dict]) -> list[str]:
    """Per larger batch size, the method that loses most of its steps against batch 1."""
    alone = {(row["key"], *_drawn(row)): row for row in rows if row["batch"] == 1 and row.get("prompts")}
    ratios: dict[int, list[tuple[float, dict]]] = {}
    for row in rows:
        other = alone.get((row["key"], *_drawn(row)))
        if other is not None and row["batch"] > 1:
            ratios.setdefault(row["batch"], []).append((row["step_compression"] / other["step_compression"], row))
    made = []
    for batch, found in ratios.items():
        share, row = min(found, key=lambda pair: pair[0])
        made.append(f"step compression of batch {batch} against batch 1: {share:.3f} at least ({_where(row)})")
    return made


def _where(row: dict) -> str:
    return f"{row['method']}; {DOMAIN.describe(row)}"


def _lines(rows: Sequence[dict]) -> dict[str, Line]:
    lines = lines_of(rows, lambda row: row["family"] or row["method"], "step_compression", "frechet")
    reach = max(x for xs, _ in lines.values() for x in xs)
    own = rows[0]["frechet_ar"]
    swept = {name: line for name, line in lines.items() if len(line[0]) > 1}
    return {"plain's own split halves": ((1.0, max(reach, 1.0)), (own, own)), **swept, **lines}
