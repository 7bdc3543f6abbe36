"""An image or a video, drawn plainly and then with drafts, and the decodings that the page offers for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.methods import MethodCall, MethodInfo, methods
from mmspec.web.lanes.cells import CellMarks, Marks, RecordingDrafter
from mmspec.web.lanes.lane import Lane, RoundMarks, last_accepted, run_pair

if TYPE_CHECKING:
    from mmspec.core.loop import DecodingRun
    from mmspec.evaluate.continuous.resources import ContinuousResources
    from mmspec.evaluate.image.resources import ImageResources
    from mmspec.evaluate.video.resources import VideoResources
    from mmspec.video.decoding.output import BlockRecord

VIDEO_PARTS = ("video", "video/draft", "video/reward")
NOT_OFFERED = ("ar", "auto")  # the other lane, and what stands for another


@dataclass(slots=True)
class PictureLane(Lane):
    """A lane that ends in an image or a video.

    Attributes:
        output: The PIL image, or the frames uint8 [F, H, W, 3], once they are finished.
        values: What is compared: the tokens of an image, the frames of a video.
        head_calls: The calls of a head that denoises vectors.
        blocks: The blocks of a whole video.
    """

    output: Any = None
    values: Any = None
    head_calls: int | None = None
    blocks: int = 0

    @property
    def ended(self) -> bool:
        """Nothing more comes."""
        return self.output is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """One request of both lanes.

    Attributes:
        pipe: The pipeline.
        given: What it takes for one image or video.
        fast: The arguments of the fast lane beside `plain`.
        title: The title of the fast lane.
        seed: The seed of both.
        plain: The arguments of both lanes.
    """

    pipe: Any
    given: Any
    fast: Mapping[str, Any]
    title: str
    seed: int
    plain: Mapping[str, Any] = field(default_factory=dict)

    @property
    def draws_blocks(self) -> bool:
        """Whether it is for a video of blocks."""
        return "blocks" in self.plain

    def start(self, **fast: Any) -> DecodingRun:
        """Start a lane: the plain one without arguments, the fast one with `fast`."""
        run = self.pipe.start([self.given], seed=[self.seed], **self.plain, **fast)
        if not self.draws_blocks:
            run.drafter = RecordingDrafter(run.drafter)
        return run


def picture_lanes(request: PictureRequest, seconds: float) -> Iterator[tuple[PictureLane, PictureLane]]:
    """Both lanes behind every round; the last of each has an output.

    Args:
        request: The request.
        seconds: The time that each lane may decode.

    Raises:
        ValueError: The pipeline, the decoding or the router refuses the request.
    """
    if not request.draws_blocks and request.pipe.model.no_pixels:
        raise ValueError(request.pipe.model.no_pixels)
    pair = PictureLane("plain decoding"), PictureLane(request.title)
    starts = (request.start, partial(request.start, **request.fast))

    def marks_of(lane: PictureLane) -> RoundMarks:
        return partial(_block_marks, lane) if request.draws_blocks else CellMarks()

    # the fast lane of a video loads the drafter, the reward and the model
    warmed = starts[1:] if request.draws_blocks else starts
    yield from run_pair(pair, starts, marks_of, seconds, warmed=warmed, finish=partial(_finish, request.pipe))


def _finish(pipe: Any, lane: PictureLane, run: DecodingRun) -> None:
    import torch

    if lane.blocks:
        lane.output = lane.values = pipe.output(run).videos[0]
        return
    with torch.no_grad():
        lane.values = pipe.tokens(run.target)
        lane.output = pipe.to_videos(lane.values, {})[0][0]
    lane.head_calls = getattr(run.target, "head_calls", None)


def _block_marks(lane: PictureLane, run: DecodingRun) -> Marks:
    """What became of the block that was just finished."""
    lane.blocks = run.target.request.blocks
    records = run.stats.records[0] if run.stats.records else []
    if not records or run.target.errors:
        return {"blocks": []}, 0
    record = records[-1]
    name = "accepted" if record.kept else "corrected" if record.drafted else "own"
    return {"blocks": [(len(records) - 1, name, score(record))]}, last_accepted(run)


def score(record: BlockRecord) -> float | None:
    """The least score of the frames of a draft, by which it was judged; of the model's own block where nothing was drafted."""
    frames = record.scores if record.scores is not None else record.own_scores
    return None if not frames or not all(map(math.isfinite, frames)) else min(frames)


def identical(one: PictureLane, other: PictureLane) -> bool:
    """Whether both are finished and equal in every value, bit for bit."""
    done = one.values is not None and other.values is not None
    return done and one.values.shape == other.values.shape and bool((one.values == other.values).all())


def missing_models() -> str | None:
    """One sentence where the zoo's video model is not built, None where it is."""
    from mmspec import zoo

    known = zoo.names()
    absent = [name for name in VIDEO_PARTS if name not in known]
    if not absent:
        return None
    commands = " and ".join(f"mmspec zoo build {name}" for name in absent)
    return f"No video model ships with mmspec yet: run {commands}, then come back to this tab."


def offered(model: str, law: str) -> dict[str, str]:
    """The decodings of an image model of the zoo whose weights are here: by text form, what each does.

    Args:
        model: "t2i", "mar" or "car".
        law: "exact" or "relaxed".
    """
    from mmspec.evaluate.model_kinds import CONTINUOUS_MODELS

    if model in CONTINUOUS_MODELS:
        return dict(_continuous(model, CONTINUOUS_MODELS[model], law == "exact"))
    kind = "decoding" if law == "exact" else "rule"  # relaxed decodings of several rows fill no grid in raster order
    return {one.name: f"{one.name}: {one.about}; {law}" for one in methods("image", kind, exact=law == "exact")
            if one.name not in NOT_OFFERED and _is_here(one, model)}  # fmt: skip


def _continuous(model: str, kind: str, exact: bool) -> Iterator[tuple[str, str]]:
    """Of a model of continuous tokens: relaxed methods that a setting makes exact, and the others, once for each choice of
    their first setting or of the rule."""
    from mmspec.evaluate.continuous.resources import rule_names

    known = [one for one in methods("continuous", "decoding", models=kind) if _is_here(one, model)]
    texts = [f"{one.name}:{one.facts['exact_at']}" for one in known if exact and "exact_at" in one.facts]
    for one in known:
        if one.exact == exact and one.name not in NOT_OFFERED:
            forms = (
                [f":{one.facts['shown_at']}"]
                if "shown_at" in one.facts
                else [f":{setting.name}={choice}" for setting in one.settings[:1] for choice in setting.choices]
            )
            texts += [
                one.name + form
                for form in forms or ([f":rule={rule}" for rule in rule_names()] if "rule" in one.facts else [""])
            ]
    for text in texts:
        call, title = _continuous_call(text, kind)
        yield text, f"{title}: {call.method.about}"


def _continuous_call(text: str, kind: str) -> tuple[MethodCall, str]:
    """The decoding of a text, and its title."""
    from mmspec.evaluate.continuous.resources import split_rule
    from mmspec.evaluate.decoding_options import decoding_call

    text, rule = split_rule(text, None)
    call = decoding_call(text, "continuous", kind)
    return call, call.title + ("" if rule is None else f", {rule.replace('_', ' ')}")


def _is_here(one: MethodInfo, model: str) -> bool:
    """Whether the zoo has the weights that a method needs for a model."""
    from mmspec import zoo

    return all(f"{model}/{part}" in zoo.names() for part in one.needs)


def image_request(
    resources: ImageResources | ContinuousResources, prompt: str, decoding: str, plain: Mapping[str, Any], seed: int
) -> PictureRequest:
    """An image by the text form of a decoding.

    Args:
        resources: The model.
        prompt: A prompt, or a class.
        decoding: The text form.
        plain: The arguments of both lanes, such as the temperature.
        seed: The seed.
    """
    from mmspec.evaluate.continuous.resources import ContinuousResources

    (given,) = resources.pipeline_prompts([prompt])
    if isinstance(resources, ContinuousResources):
        from mmspec.evaluate.continuous.resources import decoding_of as continuous_decoding

        fast, (_, title) = continuous_decoding(decoding, resources), _continuous_call(decoding, resources.kind)
    else:
        from mmspec.evaluate.image.resources import decoding_of

        drafter, rule = decoding_of(decoding).make(resources)
        fast = {"decoding": drafter, "rule": resources.rule(rule)}
        title = drafter.name if rule is None else f"{drafter.name}, {decoding}"
    return PictureRequest(resources.pipeline, given, fast, title, seed, plain)


def video_request(resources: VideoResources, prompt: str, threshold: float, blocks: int, seed: int) -> PictureRequest:
    """A video whose drafted blocks need a score of `threshold`; infinity is the model alone, bit for bit."""
    from mmspec.evaluate.video.resources import decoding_of

    call = decoding_of("sdvg", resources, {"threshold": threshold})
    title = f"SDVG, threshold {threshold:g}"
    return PictureRequest(resources.pipeline, prompt, call.arguments, title, seed, {"blocks": blocks})
