"""Video models in sweeps: routed blocks and drafted codes by name, prompts of motion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.image import sweep as of_codes
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.model_kinds import BLOCKS, CODES, VIDEO_MODELS, in_zoo, video_kind
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.methods import VideoMethod
from mmspec.evaluate.video.resources import FIRST, STEP, VideoResources, motion_prompts, open_video
from mmspec.evaluate.video.runner import sampler
from mmspec.evaluate.video.suites import SUITES, SWEPT_BLOCKS, SWEPT_CODES
from mmspec.methods import parse
from mmspec.zoo.world.tracking import agreement
from mmspec.zoo.world.video_prompts import named_movers

CALIBRATION = 16  # videos that shares are calibrated on, as in the benches


def defaults(model: str) -> list[tuple[str, str]]:
    """The target alone, the drafter alone, and routers at several shares; of codes plain and exact decodings."""
    if video_kind(model) != BLOCKS:
        return list(SWEPT_CODES)
    return list(SWEPT_BLOCKS if in_zoo(f"{model}/draft") else SWEPT_BLOCKS[:1])


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
        parse(made.decoding, "video", "decoding", "--decoding", CODES)
        return VideoMethod(decoding, made.title, made.rule, decoding=made.decoding, kind=kind)
    if rule:
        raise ValueError(f"--rule: expected none for videos of blocks, which routers judge, got {rule!r}, leave it out")
    call = decoding_call(decoding, "video", BLOCKS, purpose=f" for {model}")
    return VideoMethod(decoding, call.title, decoding=decoding)


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
