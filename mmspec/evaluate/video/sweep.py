"""Video models in sweeps: routed blocks and drafted codes by name, prompts of motion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt, MethodText
from mmspec.evaluate.image import sweep as of_codes
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.image.suites import ImageMethod
from mmspec.evaluate.model_kinds import BLOCKS, VIDEO_MODELS, in_zoo, video_kind
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.decodings import DECODINGS, VideoDecodingOverrides, pipeline_call
from mmspec.evaluate.video.methods import PipelineCall, VideoDecodingFactory, VideoMethod
from mmspec.evaluate.video.resources import FIRST, STEP, VideoResources, motion_prompts, open_video
from mmspec.evaluate.video.runner import sampler
from mmspec.evaluate.video.suites import SUITES
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video_prompts import named_movers

TITLES = {"ar": "target alone", "draft": "drafter alone", "sdvg": "SDVG"}
CALIBRATION = 16  # videos that shares are calibrated on, as in the benches
_BLOCKS = (
    ("ar", ""),
    ("draft", ""),
    *((f"sdvg-{share:g}", "") for share in (0.25, 0.5, 0.75, 0.9)),
    ("strided-0.5", ""),
)
_CODES = (("ar", ""), *((f"scd-{window}", "") for window in (32, 64)), ("sjd-64", ""))


def defaults(model: str) -> list[tuple[str, str]]:
    """The target alone, the drafter alone, and routers at several shares; of codes plain and exact decodings."""
    if video_kind(model) != BLOCKS:
        return list(_CODES)
    return list(_BLOCKS if in_zoo(f"{model}/draft") else _BLOCKS[:1])


def method(model: str, decoding: str, rule: str) -> VideoMethod:
    """A decoding of `mmspec video` with its settings, "sdvg:threshold=0.4", or a row of the benches by its key."""
    kind, rule = video_kind(model), "" if rule == "exact" else rule
    found = next(
        (one for suite in SUITES.values() for one in suite.methods if (one.key, one.kind) == (decoding, kind)), None
    )
    if found is not None and not rule:
        return found
    if kind != BLOCKS:
        made = of_codes.method(model, decoding, rule)
        return VideoMethod(decoding, made.title, made.rule, kind=kind, make=_codes(made))
    if rule:
        raise ValueError(f"--rule: expected none for videos of blocks, which routers judge, got {rule!r}, leave it out")
    spec = MethodText.read(decoding, "--decoding")
    check_choice("--decoding", spec.name, DECODINGS, f" for {model}")
    kinds = {one.name: str for one in fields(VideoDecodingOverrides)} | {"threshold": float}
    wishes = VideoDecodingOverrides(**spec.values("--decoding", **kinds))
    return VideoMethod(
        decoding, spec.said(TITLES), make=lambda resources, setting: pipeline_call(spec.name, resources, wishes)
    )


def _codes(made: ImageMethod) -> VideoDecodingFactory:
    def make(resources: VideoResources, setting: VideoSetting) -> PipelineCall:
        asked = {"decoding": made.make(resources.codes), "rule": made.rule_of(resources.codes)}
        return PipelineCall(resources.pipeline, asked)

    return make


def setting(model: str, temperature: float, wishes: SamplingOverrides) -> VideoSetting:
    blocks = wishes.given(blocks=None)["blocks"]
    return VideoSetting(batch=1, temperature=temperature, prompts=1, seed=0, blocks=blocks, draws=1, calibration=CALIBRATION,
                        model=model)  # fmt: skip


def prompts(model: str, count: int, seed: int) -> list[EvaluationPrompt]:
    return [
        EvaluationPrompt(f"motion-{FIRST + STEP * seed + i}", (one.text,))
        for i, one in enumerate(motion_prompts(count, seed))
    ]


def case(resources: VideoResources, setting: VideoSetting, prompt: EvaluationPrompt) -> list[GenerationRequest]:
    if resources.codes is not None:
        return of_codes.case(resources.codes, setting, prompt)
    return [GenerationRequest(prompt.text, prompt.text)]


class MotionTruth:
    """Of the objects that a prompt in the world's words names, how well colour, direction and shape are read off the
    frames."""

    name, hash, about = "truth", "tracking-1", "share of the color, direction and shape asked for that the frames show"

    def __call__(self, made: Sequence[np.ndarray], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        named = [named_movers(one.text) for one in prompts]
        pairs = zip(made, named, strict=True)
        return np.array([agreement(film, movers) if movers else np.nan for film, movers in pairs], dtype=np.float64)


def open_model(model: str) -> VideoResources:
    return open_video(model)


SWEEP = Sweep(
    models=tuple(VIDEO_MODELS),
    shows="film",
    temperatures=(1.0,),
    defaults=defaults,
    method=method,
    setting=setting,
    open=open_model,
    prompts=prompts,
    case=case,
    sampler=sampler,
    said=lambda setting: {**setting.name(), **({} if setting.blocks is None else {"blocks": setting.blocks})},
    scorers=lambda model: [MotionTruth()],
)
