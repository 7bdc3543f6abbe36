"""Video models in sweeps: routed blocks and drafted codes by name, prompts of motion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from mmspec.evaluate.engine.prompt import Prompt, Spec
from mmspec.evaluate.engine.sweep import Sweep
from mmspec.evaluate.engine.sweep import Wishes as Drawn
from mmspec.evaluate.image import sweep as of_codes
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.requests import Request
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.decodings import DECODINGS, Wishes, way_of
from mmspec.evaluate.video.kinds import BLOCKS, ZOO_MODELS, in_zoo, kind_of
from mmspec.evaluate.video.methods import Make, VideoMethod, Way
from mmspec.evaluate.video.requests import FIRST, STEP, prompts_of
from mmspec.evaluate.video.resources import VideoResources, open_video
from mmspec.evaluate.video.runner import sampler
from mmspec.evaluate.video.suites import SUITES
from mmspec.zoo.world.moving_prompts import named_movers
from mmspec.zoo.world.tracking import agreement

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
    if kind_of(model) != BLOCKS:
        return list(_CODES)
    return list(_BLOCKS if in_zoo(f"{model}/draft") else _BLOCKS[:1])


def method(model: str, decoding: str, rule: str) -> VideoMethod:
    """A decoding of `mmspec video` with its settings, "sdvg:threshold=0.4", or a row of the benches by its key."""
    kind, rule = kind_of(model), "" if rule == "exact" else rule
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
    spec = Spec.read(decoding, "--decoding")
    if spec.name not in DECODINGS:
        known = ", ".join(DECODINGS)
        raise ValueError(f"--decoding: expected one of {known} for {model}, got {spec.name!r}, pick one of these")
    kinds = {one.name: str for one in fields(Wishes)} | {"threshold": float}
    wishes = Wishes(**spec.values("--decoding", **kinds))
    return VideoMethod(
        decoding, spec.said(TITLES), make=lambda resources, setting: way_of(spec.name, resources, wishes)
    )


def _codes(made: ImageMethod) -> Make:
    def make(resources: VideoResources, setting: VideoSetting) -> Way:
        rule = None if made.rule == "exact" else resources.codes.rule(made.rule)
        return Way(resources.pipeline, {"decoding": made.make(resources.codes), "rule": rule})

    return make


def setting(model: str, temperature: float, wishes: Drawn) -> VideoSetting:
    blocks = wishes.given(blocks=None)["blocks"]
    return VideoSetting(batch=1, temperature=temperature, prompts=1, seed=0, blocks=blocks, draws=1, calibration=CALIBRATION,
                        model=model)  # fmt: skip


def prompts(model: str, count: int, seed: int) -> list[Prompt]:
    return [Prompt(f"motion-{FIRST + STEP * seed + i}", (one.text,)) for i, one in enumerate(prompts_of(count, seed))]


def case(resources: VideoResources, setting: VideoSetting, prompt: Prompt) -> list[Request]:
    if resources.codes is not None:
        return of_codes.case(resources.codes, setting, prompt)
    return [Request(prompt.text, prompt.text)]


class Truth:
    """Of the objects that a prompt in the world's words names, how well colour, direction and shape are read off the
    frames."""

    name, hash, about = "truth", "tracking-1", "share of the color, direction and shape asked for that the frames show"

    def __call__(self, made: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> np.ndarray:
        named = [named_movers(one.text) for one in prompts]
        pairs = zip(made, named, strict=True)
        return np.array([agreement(film, movers) if movers else np.nan for film, movers in pairs], dtype=np.float64)


def open_model(model: str) -> VideoResources:
    return open_video(model)


SWEEP = Sweep(
    models=tuple(ZOO_MODELS),
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
    scorers=lambda model: [Truth()],
)
