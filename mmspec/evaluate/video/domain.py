"""The domain of videos of blocks and of codes: requests, methods by name, and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides
from mmspec.evaluate.engine.runs import Sampler
from mmspec.evaluate.image.domain import DOMAIN as OF_CODES
from mmspec.evaluate.image.figures import codes_run
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.evaluate.quality.features import Scorer
from mmspec.evaluate.video import page
from mmspec.evaluate.video.calibration import FIRST, STEP, motion_prompts, requests_of
from mmspec.evaluate.video.config import VideoBenchConfig, VideoSetting
from mmspec.evaluate.video.figures import block_bytes, block_facts, certainty, complete, draw
from mmspec.evaluate.video.quality import FIELDS, QUALITY, VideoReference
from mmspec.evaluate.video.suites import SUITES, SWEPT_BLOCKS, SWEPT_CODES, VideoMethod
from mmspec.methods import parse
from mmspec.run.decoding_options import decoding_call
from mmspec.run.model_kinds import BLOCKS, CODES, VIDEO_MODELS, in_zoo, video_kind
from mmspec.run.placement import clock, weights_of
from mmspec.run.timed_run import TimedRun, parts_of, raise_errors, timed_run
from mmspec.run.video_models import ALONE, PipelineCall, VideoResources, open_video
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video_prompts import named_movers

CALIBRATION = 16  # videos for the calibration of shares, as in the benches
TIMING = (
    "whole calls with pixels; medians of paired ratios; spread: 10th and 90th percentile; seconds of passes are taken from "
    "target and drafter alone, of decoding from the target alone, of scores from all requests that had some"
)


class MotionTruth:
    """How well the frames show the colour, direction and shape of the objects that a prompt names in the words of the
    zoo's world."""

    name, hash, about = "truth", "tracking-1", "share of the color, direction and shape asked for that the frames show"

    def __call__(self, outputs: Sequence[np.ndarray], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        named = [named_movers(prompt.text) for prompt in prompts]
        pairs = zip(outputs, named, strict=True)
        return np.array([agreement(film, movers) if movers else np.nan for film, movers in pairs], dtype=np.float64)


class VideoDomain(Domain):
    """Models of videos, from the zoo or from folders."""

    name, config, suites, models = "video", VideoBenchConfig, SUITES, tuple(VIDEO_MODELS)
    output = "videos of the target alone, bit for bit"
    shows = "film"
    quality = {name: name for name in FIELDS}
    certainty, complete, reference = staticmethod(certainty), staticmethod(complete), VideoReference
    describe, page, panels = staticmethod(page.describe), staticmethod(page.page), staticmethod(page.panels)

    def open(self, model: str, config: VideoBenchConfig | None = None) -> VideoResources:
        return open_video(model, *(() if config is None else (config.draft, config.reward)))

    def cases(self, resources: VideoResources, setting: VideoSetting) -> list[list[GenerationRequest]]:
        return setting.batches(requests_of(resources, setting.prompts, setting.seed))

    def sampler(self, method: VideoMethod, resources: VideoResources, setting: VideoSetting) -> Sampler:
        """Return a function that draws a batch of videos uint8 [F, H, W, 3]; its time includes the pixels."""
        way = method.make(resources, setting)
        return _blocks(method, way, setting) if resources.kind == BLOCKS else _codes(way, setting)

    def environment(self, config: VideoBenchConfig, resources: VideoResources) -> dict:
        suite = config.plan()
        return {
            "model": resources.name,
            "kind": resources.kind,
            "draft": config.draft,
            "reward": resources.scorer if resources.kind == BLOCKS else None,
            **weights_of(resources),
            "prompts": config.prompts if suite.timed else None,
            "judged_prompts": config.judged_prompts if suite.judged else None,
            "draws": config.draws if suite.judged else None,
            "calibration": config.calibration if resources.kind == BLOCKS else None,
            "timing": TIMING if suite.timed else None,
            "quality": QUALITY if suite.judged else None,
        }

    def defaults(self, model: str) -> list[tuple[str, str]]:
        """Return the target, the drafter, and routers at several shares; for codes, plain and exact decodings."""
        if video_kind(model) != BLOCKS:
            return list(SWEPT_CODES)
        return list(SWEPT_BLOCKS if in_zoo(f"{model}/draft") else SWEPT_BLOCKS[:1])

    def method(self, model: str, decoding: str, rule: str) -> VideoMethod:
        """Return a decoding of `mmspec video` with its settings, "sdvg:threshold=0.4", or a bench row by key."""
        kind, rule = video_kind(model), "" if rule == "exact" else rule
        row = self.row(decoding, lambda candidate: candidate.kind == kind)
        if row is not None and not rule:
            return row
        if kind != BLOCKS:
            codes = OF_CODES.method(model, decoding, rule)
            parse(codes.decoding, "video", "decoding", "--decoding", CODES)
            return VideoMethod(decoding, codes.title, codes.rule, decoding=codes.decoding, kind=kind)
        if rule:
            raise ValueError(
                f"--rule: expected none for videos of blocks, which routers judge, got {rule!r}, leave it out"
            )
        call = decoding_call(decoding, "video", BLOCKS, purpose=f" for {model}")
        return VideoMethod(decoding, call.title, decoding=decoding)

    def setting(self, model: str, temperature: float, wishes: SamplingOverrides) -> VideoSetting:
        shared = {"batch": 1, "prompts": 1, "seed": 0, "draws": 1, "calibration": CALIBRATION}
        return VideoSetting(temperature=temperature, blocks=wishes.blocks, model=model, **shared)

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        requests = enumerate(motion_prompts(count, seed), FIRST + STEP * seed)
        return [EvaluationPrompt(f"motion-{number}", (request.text,)) for number, request in requests]

    def case(
        self, resources: VideoResources, setting: VideoSetting, prompt: EvaluationPrompt
    ) -> list[GenerationRequest]:
        if resources.codes is not None:
            return OF_CODES.case(resources.codes, setting, prompt)
        return [GenerationRequest(prompt.text, prompt.text)]

    def drawing(self, setting: VideoSetting) -> dict[str, Any]:
        return {**setting.name(), **({} if setting.blocks is None else {"blocks": setting.blocks})}

    def scorers(self, model: str) -> list[Scorer]:
        return [MotionTruth()]


DOMAIN = VideoDomain()


def _blocks(method: VideoMethod, way: PipelineCall, setting: VideoSetting) -> Sampler:
    alone = method.key == ALONE

    def run(requests: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[np.ndarray]]:
        began = clock(way.pipeline.model.device)
        out = draw(way, requests, setting, seed)
        seconds, stats = clock(way.pipeline.model.device) - began, out.stats
        plan = way.pipeline.model.plan
        output = tuple(block_bytes(latent, plan) for latent in out.latents)
        fields: dict[str, Any] = {"rounds": len(stats.block_s), "more": block_facts(way, stats)}
        if alone:
            parts = parts_of(stats, seconds)
            fields |= {"parts": parts | {"draft": parts["draft"] + parts["target"], "target": 0.0}, "exact": False}
        return timed_run(stats, output, seconds, **fields), out.videos

    return run


def _codes(way: PipelineCall, setting: VideoSetting) -> Sampler:
    def run(requests: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[np.ndarray]]:
        prompts, how = [request.prompt for request in requests], {"temperature": setting.temperature, **way.arguments}
        began = clock(way.pipeline.model.device)
        out = way.pipeline(prompts, seed=seed, **how)
        seconds = clock(way.pipeline.model.device) - began
        raise_errors(out.errors)
        return codes_run(out, seconds), list(out.arrays())

    return run
