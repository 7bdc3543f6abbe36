"""Images and videos, drawn plainly and then with drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.io.unknown_words import tokenizer_of, unknown_words
from mmspec.web.lanes.cells import CellMarks, Marks, RecordingDrafter
from mmspec.web.lanes.decodings import continuous_call
from mmspec.web.lanes.lane import Lane, RoundMarks, last_accepted, run_pair
from mmspec.web.lanes.python_code import block_code, picture_code

if TYPE_CHECKING:
    from mmspec.core.round.loop import DecodingRun
    from mmspec.run.continuous_models import ContinuousResources
    from mmspec.run.image_models import ImageResources
    from mmspec.run.video_models import VideoResources
    from mmspec.video.decoding.output import BlockRecord

CELL_PER_PASS = {"mar": {"num_iter": 64}}  # as many passes as cells: published models draw few cells per pass, too


@dataclass(slots=True)
class PictureLane(Lane):
    """A lane that ends in an image or a video."""

    output: Any = None  # the PIL image, or the frames of a video as uint8 [F, H, W, 3]; None before the end
    values: Any = None  # the values to compare: the tokens, or the frames of a video of blocks
    head_calls: int | None = None  # calls of the diffusion head, None for models without a head
    blocks: int = 0  # of the whole video

    @property
    def ended(self) -> bool:
        return self.output is not None or self.stopped is not None


@dataclass(frozen=True, slots=True)
class PictureRequest:
    """A request of both lanes."""

    pipe: Any
    condition: Any  # the prompt or the class of the image or video
    fast: Mapping[str, Any]  # the arguments of the fast lane beside `plain`
    title: str  # of the fast lane
    seed: int  # of both lanes
    plain: Mapping[str, Any] = field(default_factory=dict)  # the arguments of both lanes
    code: str = ""  # a Python program that gives the output of the fast lane
    unknown: tuple[str, ...] = ()  # the words of the prompt that the model does not know

    @property
    def draws_blocks(self) -> bool:
        return "blocks" in self.plain

    @property
    def frames(self) -> int:
        """Return the number of frames of a model of tokens; an image is a single frame."""
        return getattr(getattr(self.pipe.model, "geometry", None), "frames", 1)

    def start(self, **fast: Any) -> DecodingRun:
        """Start the plain lane, or the fast lane with the arguments `fast`."""
        run = self.pipe.start([self.condition], seed=[self.seed], **self.plain, **fast)
        if not self.draws_blocks:
            run.drafter = RecordingDrafter(run.drafter)
        return run


def picture_lanes(request: PictureRequest, seconds: float) -> Iterator[tuple[PictureLane, PictureLane]]:
    """Decode both lanes, each for at most `seconds`; yield them after every round. The last lanes have outputs."""
    if not request.draws_blocks and request.pipe.model.no_pixels:
        raise ValueError(request.pipe.model.no_pixels)
    pair = PictureLane("plain decoding"), PictureLane(request.title)
    starts = (request.start, partial(request.start, **request.fast))

    def marks_of(lane: PictureLane) -> RoundMarks:
        return partial(_block_marks, lane) if request.draws_blocks else CellMarks()

    # the fast lane of a video loads the drafter, the reward and the model
    warmed = starts[1:] if request.draws_blocks else starts
    yield from run_pair(pair, starts, marks_of, seconds, warmed=warmed, finish=partial(_finish, request))


def _finish(request: PictureRequest, lane: PictureLane, run: DecodingRun) -> None:
    import numpy as np
    import torch

    if lane.blocks:
        lane.output = lane.values = request.pipe.output(run).videos[0]
        return
    with torch.no_grad():
        lane.values = request.pipe.tokens(run.target)
        frames = request.pipe.to_videos(lane.values, {})[0]
    lane.output = frames[0] if request.frames == 1 else np.stack([np.asarray(frame) for frame in frames])
    lane.head_calls = getattr(run.target, "head_calls", None)


def _block_marks(lane: PictureLane, run: DecodingRun) -> Marks:
    lane.blocks = run.target.request.blocks
    records = run.stats.records[0] if run.stats.records else []
    if not records or run.target.errors:
        return {"blocks": []}, 0
    record = records[-1]
    name = "accepted" if record.kept else "corrected" if record.drafted else "own"
    return {"blocks": [(len(records) - 1, name, score(record))]}, last_accepted(run)


def score(record: BlockRecord) -> float | None:
    """Return the lowest score of the frames of a draft, or of the model's own block without a draft; None if not
    finite."""
    frames = record.scores if record.scores is not None else record.own_scores
    return None if not frames or not all(map(math.isfinite, frames)) else min(frames)


def identical(plain: PictureLane, fast: PictureLane) -> bool:
    """Return whether both lanes are finished and equal in every value, bit for bit."""
    done = plain.values is not None and fast.values is not None
    return done and plain.values.shape == fast.values.shape and bool((plain.values == fast.values).all())


def image_request(
    resources: ImageResources | ContinuousResources,
    prompt: str,
    decoding: str,
    plain: Mapping[str, Any],
    seed: int,
    domain: str = "image",
) -> PictureRequest:
    """Return the request of an image, or of a video of tokens (domain "video"), from a prompt or a class and the text
    form of the decoding. `plain` are the arguments of both lanes, such as the temperature."""
    from mmspec.run.continuous_models import ContinuousResources

    (condition,) = resources.pipeline_prompts([prompt])
    if isinstance(resources, ContinuousResources):
        from mmspec.run.continuous_models import decoding_of as continuous_decoding
        from mmspec.run.continuous_models import split_rule

        plain = {**CELL_PER_PASS.get(resources.zoo, {}), **plain}
        fast, (_, title) = continuous_decoding(decoding, resources), continuous_call(decoding, resources.kind)
        texts = split_rule(decoding, None)
    else:
        from mmspec.run.image_models import decoding_of

        call = decoding_of(decoding, domain=domain)
        drafter, rule = call.make(resources)
        fast = {"decoding": drafter, "rule": resources.rule(rule)}
        title, texts = drafter.name if rule is None else f"{drafter.name}, {decoding}", (str(call.drafts), rule)
    arguments = {name: text for name, text in zip(("decoding", "rule"), texts, strict=True) if text is not None}
    code = picture_code(resources.zoo, condition, {**arguments, **plain, "seed": seed}, is_video=domain == "video")
    words = unknown_words(tokenizer_of(resources.pipeline), [condition] if isinstance(condition, str) else [])
    return PictureRequest(resources.pipeline, condition, fast, title, seed, plain, code, tuple(words))


def video_request(resources: VideoResources, prompt: str, threshold: float, blocks: int, seed: int) -> PictureRequest:
    """Return the request of a video of blocks. The threshold is the least score of an accepted block; infinity accepts
    none, and the video is the model's own."""
    from mmspec.run.video_models import decoding_of

    call = decoding_of("sdvg", resources, {"threshold": threshold})
    title, code = f"SDVG, threshold {threshold:g}", block_code(prompt, threshold, {"blocks": blocks, "seed": seed})
    words = unknown_words(tokenizer_of(resources.pipeline), [prompt])
    return PictureRequest(
        resources.pipeline, prompt, call.arguments, title, seed, {"blocks": blocks}, code, tuple(words)
    )
