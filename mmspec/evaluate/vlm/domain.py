"""The domain of models for text: requests of several turns, methods by name, and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides
from mmspec.evaluate.engine.resume_log import BenchLog
from mmspec.evaluate.engine.runs import Sampler
from mmspec.evaluate.quality.features import Scorer
from mmspec.evaluate.vlm import page
from mmspec.evaluate.vlm.config import VlmBenchConfig, VlmSetting
from mmspec.evaluate.vlm.figures import complete
from mmspec.evaluate.vlm.measured import cost_curve, same_drafts
from mmspec.evaluate.vlm.methods import PEER, VlmMethod, chained
from mmspec.evaluate.vlm.quality import AnswerRight, ObjectsRight, WordsRight
from mmspec.evaluate.vlm.requests import CAPTIONS, evaluation_prompts, scene_prompts
from mmspec.evaluate.vlm.runner import cases, certainty, runner, timed_runner
from mmspec.evaluate.vlm.suites import SUITES, SWEPT
from mmspec.evaluate.vlm.united import united
from mmspec.methods import parse
from mmspec.methods.text import split
from mmspec.run.decoding_options import check_choice
from mmspec.run.placement import inputs_on, weights_of
from mmspec.run.timed_run import TimedRun
from mmspec.run.vlm_models import (
    HYBRID,
    SMOLLM2,
    TARGETS,
    VlmResources,
    drafter_names,
    open_target,
    short_name,
    title_of,
)
from mmspec.run.vlm_requests import encode_turns

TIMING = (
    "whole calls with vision tower and prefill; medians of paired ratios of seconds per emitted token; spread: "
    "10th and 90th percentile"
)


class VlmDomain(Domain):
    """Models for pictures and text or for text alone, from the zoo or from folders."""

    name, config, suites, models = "vlm", VlmBenchConfig, SUITES, TARGETS
    output = "tokens of transformers"
    temperatures = (0.0, 1.0)
    cases, runner, certainty = staticmethod(cases), staticmethod(runner), staticmethod(certainty)
    complete, united = staticmethod(complete), staticmethod(united)
    describe, page, panels = staticmethod(page.describe), staticmethod(page.page), staticmethod(page.panels)

    def open(self, model: str, config: VlmBenchConfig | None = None) -> VlmResources:
        return open_target(model) if config is None else open_target(model, config.dtype)

    def sampler(self, method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Sampler:
        """Return a function that answers turn after turn, each with all earlier turns as context. The cost is that of
        all answers without encoding, and the answers are joined to a single text."""
        decode = timed_runner(method, resources, setting)

        def run(prompt: EvaluationPrompt, seed: int) -> tuple[TimedRun, list[str]]:
            runs: list[TimedRun] = []
            answers: list[str] = []
            pictures = tuple(picture() for picture in prompt.pictures)
            for turn in range(len(prompt.turns)):
                inputs = encode_turns(resources.processor, prompt.turns[: turn + 1], answers, pictures)
                runs.append(decode(inputs_on(inputs, resources.model), seed + turn))
                ids = list(runs[-1].output[0])
                answers.append(resources.processor.decode(ids, skip_special_tokens=True).strip())
            return combined_run(runs), ["\n\n".join(answers)]

        return run

    def environment(self, config: VlmBenchConfig, resources: VlmResources) -> dict:
        return {
            "model": resources.name,
            **weights_of(resources),
            "prompts": config.prompts,
            "timing": TIMING,
        }

    def extras(self, config: VlmBenchConfig, resources: VlmResources, log: BenchLog) -> dict:
        """Return the accept lengths on identical drafts and the cost curve of the target."""
        entries = same_drafts(config, resources, log)
        if config.plan().curve:
            setting = next(config.settings())
            entries["cost_curve"] = log.once({"cost curve": setting.task.name}, lambda: cost_curve(resources, setting))
        return entries

    def may_fail(self, row: dict) -> bool:
        """Return whether the row is one of transformers, which refuses some requests."""
        return row["key"].startswith("hf-")

    def defaults(self, model: str) -> list[tuple[str, str]]:
        """Return plain decoding, available drafters and a relaxed rule; folders have drafters without training only."""
        known = drafter_names(model) if model in TARGETS else ("lookup", "recycling")
        drafters = [(name, "") for name in SWEPT if name in known]
        return [("ar", ""), *drafters, ("recycling", "typical:threshold=0.09,alpha=0.3")]

    def method(self, model: str, decoding: str, rule: str) -> VlmMethod:
        """Return a drafter by name, with `length` for chains, or a row of the benches by key. "ar" is plain decoding,
        "hf" transformers' own."""
        name, settings, weights = split(decoding, "--decoding")
        ours = drafter_names(model) if model in TARGETS else drafter_names()
        own = (PEER, "plain", *ours)
        suites = [suite for suite in SUITES.values() if suite.model == (model if model in TARGETS else "vlm")]
        rows = (row for suite in suites for row in suite.rows() if row.key == decoding and decoding not in own)
        row = next(rows, None)
        if row is not None:
            parse(rule or row.rule, "vlm", "rule", "--rule")
            return replace(row, rule=rule or row.rule)
        rule = rule or "exact"
        judged = parse(rule, "vlm", "rule", "--rule")
        if name in ("ar", "none", PEER) and weights is None:
            _chain_length(name, settings, takes=())
            engine, title = ("transformers", "transformers") if name == PEER else ("mmspec", "plain")
            return VlmMethod(decoding, title, rule, engine=engine)
        if weights is not None or short_name(name) not in ours:
            check_choice("--decoding", name if weights is None else decoding, ("ar", PEER, *ours), f" for {model}")
        length, name = _chain_length(name, settings), short_name(name)
        title = title_of(name) + (f" (chain of {length})" if length else "")
        title += "" if rule == "exact" else f" + {judged.title}"
        return VlmMethod(decoding, title, rule, drafter=name, change=chained(length) if length else None)

    def setting(self, model: str, temperature: float, wishes: SamplingOverrides) -> VlmSetting:
        limit = CAPTIONS.new_tokens if wishes.new_tokens is None else wishes.new_tokens
        return VlmSetting(batch=1, temperature=temperature, prompts=1, seed=0, task=CAPTIONS, limit=limit)

    def drawing(self, setting: VlmSetting) -> dict[str, Any]:
        return {**setting.name(), "limit": setting.limit}

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        """Return the real prompts of the benches for a text-only model, else scenes, with documents for the hybrid."""
        if model == SMOLLM2:
            return evaluation_prompts(count, seed)
        return scene_prompts(count, seed, with_documents=model == HYBRID)

    def scorers(self, model: str) -> list[Scorer]:
        of_world = [] if model == SMOLLM2 else [ObjectsRight()]
        return [*of_world, AnswerRight(), *([WordsRight()] if model == HYBRID else [])]


DOMAIN = VlmDomain()


def _chain_length(name: str, settings: Mapping[str, str], takes: tuple[str, ...] = ("length",)) -> int | None:
    """Return the chain length in the settings of a decoding, None without a length; other settings are refused."""
    for key in settings.keys() - set(takes):
        known = ", ".join(takes) or "none"
        raise ValueError(f"--decoding: expected settings that {name} takes ({known}), got {key!r}, leave it out")
    text = settings.get("length")
    if text is not None and not text.isdecimal():
        raise ValueError(f"--decoding: expected a number for length of {name}, got {text!r}, correct it")
    return None if text is None else int(text)


def combined_run(runs: Sequence[TimedRun]) -> TimedRun:
    """Return the total cost of consecutive requests for a single row as one run."""
    if len(runs) == 1:
        return runs[0]
    output = tuple(chain.from_iterable(run.output[0] for run in runs))
    passes = sum(run.target_passes for run in runs)
    parts = None
    if all(run.parts is not None for run in runs):
        parts = {name: sum(run.parts[name] for run in runs) for name in runs[0].parts}
    return TimedRun(
        seconds=sum(run.seconds for run in runs),
        output=(output,),
        target_passes=passes,
        accept_length=len(output) / passes,
        parts=parts,
        exact=all(run.exact for run in runs),
        drafter_passes=sum(run.drafter_passes for run in runs),
        rounds=sum(run.decode_rounds for run in runs),
        accepted=tuple(chain.from_iterable(run.accepted for run in runs)),
    )
