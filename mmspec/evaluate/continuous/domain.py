"""The domain of images of continuous tokens: requests, methods by name, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from torch import Tensor

from mmspec.core.round.draft import Draft
from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.continuous import page
from mmspec.evaluate.continuous.config import ContinuousBenchConfig, ContinuousSetting
from mmspec.evaluate.continuous.figures import complete, pipeline_arguments, target_figures
from mmspec.evaluate.continuous.suites import SUITES, SWEPT, ContinuousMethod
from mmspec.evaluate.engine.domain import SamplingOverrides
from mmspec.evaluate.engine.observed_drafter import ObservedDrafter
from mmspec.evaluate.engine.runs import Sampler
from mmspec.evaluate.gallery import QUALITY
from mmspec.evaluate.pictures import GenerationRequest, PictureDomain, class_prompts, requests_of
from mmspec.methods import parse
from mmspec.run.continuous_models import (
    ContinuousResources,
    decoding_names,
    open_continuous,
    rule_names,
    split_rule,
)
from mmspec.run.decoding_options import check_choice, decoding_call
from mmspec.run.model_kinds import CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo
from mmspec.run.placement import clock, weights_of
from mmspec.run.timed_run import TimedRun, counted_passes, raise_errors, row_passes, timed_run
from mmspec.zoo.world.image import class_names

GUIDANCE, STEPS = 2.0, 64
TIMING = (
    "whole calls with pixels, where there is an autoencoder; medians of paired ratios; spread: 10th and 90th percentile; c: "
    "seconds of a pass of the drafter with its head over those of plain decoding"
)


class ContinuousDomain(PictureDomain):
    """Image models with continuous tokens, masked or causal, from the zoo or from folders."""

    name, config, suites, models = "continuous", ContinuousBenchConfig, SUITES, tuple(CONTINUOUS_MODELS)
    output = "tokens of plain decoding, bit for bit"
    figures, complete = staticmethod(target_figures), staticmethod(complete)
    describe, page, panels = staticmethod(page.describe), staticmethod(page.page), staticmethod(page.panels)

    def open(self, model: str, config: ContinuousBenchConfig | None = None) -> ContinuousResources:
        return open_continuous(model, *(() if config is None else (config.draft, config.num_sampling_steps)))

    def requests(self, resources: ContinuousResources, setting: ContinuousSetting) -> list[GenerationRequest]:
        """Return the classes in turn, in words where they are the zoo's classes."""
        if resources.classes == len(class_names()):
            return requests_of("c2i", setting.prompts, setting.seed)
        labels = (number % resources.classes for number in range(setting.prompts))
        return [GenerationRequest(label, f"class {label}") for label in labels]

    def arguments(
        self, method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting
    ) -> dict[str, Any]:
        return method.make(resources) | pipeline_arguments(resources, setting)

    def sampler(self, method: ContinuousMethod, resources: ContinuousResources, setting: ContinuousSetting) -> Sampler:
        """Return a function that draws a batch of images; its time includes the pixels. A model without an autoencoder
        returns no images. In a run, `more` holds `head_calls`, the calls of the heads of target and drafter;
        `forwards`, the forward passes of the target's network, of which a round may make several; `drafted` and `kept`,
        the judged and the accepted tokens."""
        how, pipe = self.arguments(method, resources, setting), resources.pipeline

        def run(requests: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
            valid: list[Tensor] = []  # by draft; node 0 is the known context or padding

            def note(draft: Draft, seconds: float) -> None:
                if draft.valid is not None:
                    valid.append(draft.valid[:, 1:])

            with counted_passes(resources.transformer) as passes:
                began = clock(resources.model.device)
                request = pipe.start([request.prompt for request in requests], seed=seed, **how)
                request.drafter = ObservedDrafter(request.drafter, note)
                request.run()
                tokens = pipe.tokens(request.target)
                videos = pipe.to_videos(tokens, request.target.errors) if resources.pixels else []
                seconds = clock(resources.model.device) - began
            raise_errors(request.target.errors)
            stats = request.stats
            more = {
                "head_calls": request.target.head_calls,
                "forwards": len(passes),
                "drafted": sum(int(mask.sum()) for mask in valid),
                "kept": sum(count or 0 for line in stats.accepted for count in line),
            }
            run = timed_run(stats, token_bytes(tokens), seconds, row_passes=row_passes(stats), more=more)
            return run, [frames[0] for frames in videos]

        return run

    def environment(self, config: ContinuousBenchConfig, resources: ContinuousResources) -> dict:
        suite = config.plan()
        return {
            "model": resources.name,
            "kind": resources.kind,
            "draft": config.draft,
            **weights_of(resources),
            "values": resources.total,
            "head_steps": resources.head_steps,
            "prompts": config.prompts if suite.timed else None,
            "images": config.images if suite.judged else None,
            "timing": TIMING,
            "quality": QUALITY if suite.judged else None,
        }

    def defaults(self, model: str) -> list[tuple[str, str]]:
        """Return plain decoding and the decodings of the model's kind; drafted decodings need a drafter in the zoo."""
        pairs, drafted = SWEPT[continuous_kind(model)], in_zoo(f"{model}/draft")
        return [pair for pair in pairs if drafted or not parse(pair[0], "continuous", "decoding").method.needs]

    def method(self, model: str, decoding: str, rule: str) -> ContinuousMethod:
        """Return a decoding of `mmspec image` with its settings, "small:gamma=4", or a bench row by key."""
        kind, rule = continuous_kind(model), "" if rule == "exact" else rule
        row = self.row(decoding, lambda candidate: candidate.kind in ("", kind))
        if row is not None and not rule and decoding not in decoding_names():
            return row
        text, own = split_rule(decoding, None)
        call = decoding_call(text, "continuous", kind, purpose=f" for {model}, a {kind} model of vectors")
        if rule and own is None:
            name = call.method.name
            raise ValueError(
                f"--rule: expected none for --decoding {name}, which has its own rule, got {rule!r}, leave it out"
            )
        if rule:
            check_choice("--rule", rule, rule_names(), " for vectors")
        title = f"{call.title} + {parse(rule, kind='rule').title}" if rule else call.title
        return ContinuousMethod(decoding, title, rule or "exact", decoding=decoding, gamma=call.settings.get("gamma"))

    def drawn(self, model: str, wishes: SamplingOverrides) -> dict[str, Any]:
        drawn = wishes.with_defaults(guidance=GUIDANCE if model in CONTINUOUS_MODELS else None, num_iter=STEPS)
        if continuous_kind(model) != MASKED:
            drawn["num_iter"] = 0
        return drawn

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        return class_prompts(count, seed)

    def case(self, resources: ContinuousResources, setting: Any, prompt: EvaluationPrompt) -> list[GenerationRequest]:
        """Return the label that the prompt has or names, else its text for a model that reads captions."""
        if prompt.label is not None:
            return [GenerationRequest(resources.labels([str(prompt.label)])[0], prompt.text)]
        return [GenerationRequest(resources.pipeline_prompts([prompt.text])[0], prompt.text)]


DOMAIN = ContinuousDomain()


def token_bytes(tokens: Tensor) -> tuple[tuple[bytes, ...], ...]:
    """Return the tokens float [B, L, d] of each row as bytes; equal where every bit is equal."""
    return tuple(tuple(token.tobytes() for token in row) for row in tokens.float().cpu().numpy())
