"""A video model with its drafter and reward, prompts of motion, calibrated routers, and decodings from text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmspec.evaluate.decoding_options import decoding_call
from mmspec.evaluate.engine.domain import PipelineResources
from mmspec.evaluate.engine.runs import raise_errors
from mmspec.evaluate.engine.suite import PLAIN
from mmspec.evaluate.image.resources import ImageResources, folder_resources
from mmspec.evaluate.model_kinds import BLOCKS, VIDEO_MODELS, video_kind, zoo_part
from mmspec.evaluate.pictures import GenerationRequest
from mmspec.evaluate.quality.rewards import check_reward, reward_of
from mmspec.methods import MethodCall, names, parse
from mmspec.video.decoding.output import VideoStats
from mmspec.video.decoding.sdvg import SDVG
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.learned import Advantage, scored_pairs, train_advantage
from mmspec.video.routing.routers import Explore, Router, threshold_for_share
from mmspec.zoo.world.video import HELD_OUT, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.video.pipeline import BlockVideoPipeline
    from mmspec.video.rewards.scores import Reward

FIRST = HELD_OUT + (1 << 18)  # after the scenes of the trainers' evaluations
CALIBRATION = FIRST + (1 << 15)  # scenes on which thresholds and learned routers are fitted
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next
ALONE = "draft"
EXPLORED_SHARE = 0.4  # the share of drafts accepted while a router is calibrated


def motion_prompts(count: int, seed: int = 0, first: int = FIRST) -> list[GenerationRequest]:
    """Return `count` prompts of motion; prompts of different seeds, or of another `first`, are disjoint."""
    texts = [video_prompt(sample_video_scene(first + STEP * seed + i), seed) for i in range(count)]
    return [GenerationRequest(text, text) for text in texts]


def requests_of(resources: VideoResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """Return prompts, or labels in turn for a model that draws classes."""
    config = getattr(getattr(resources.pipeline.model, "transformer", None), "config", None)
    if getattr(config, "model_type", None) == "c2i":
        return [GenerationRequest(i % config.num_classes, f"class {i % config.num_classes}") for i in range(count)]
    return motion_prompts(count, seed)


@dataclass(slots=True)
class VideoResources(PipelineResources):
    """A video model with its drafter and its reward: a `BlockVideoPipeline`, or an image pipeline whose model draws
    several frames."""

    kind: str  # "blocks" or "codes"
    name: str  # in tables
    zoo: str = ""  # its name in the zoo, "" for a folder
    draft: str | None = None  # the folder of the drafter, None for the zoo's own
    scorer: str = "reward"  # the reward, see `reward_of`
    codes: ImageResources | None = None  # the resources of the same pipeline in `mmspec image`, for models of codes

    def own_part(self, name: str) -> Any:
        """Return "draft", the smaller pipeline, or "reward", the scorer of frames."""
        return self.drafter() if name == "draft" else self.reward()

    def drafter(self) -> BlockVideoPipeline:
        """Return the smaller pipeline."""
        return self.once("drafter", lambda: self.fitted(self._drafter()))

    def _drafter(self) -> BlockVideoPipeline:
        if self.draft is not None:
            if not Path(self.draft).is_dir() or video_kind(self.draft, "--draft") != BLOCKS:
                raise ValueError(
                    f"--draft: expected a folder with a saved pipeline of blocks, got {self.draft!r}, correct it"
                )
            return blocks_of(Path(self.draft))
        if not self.zoo:
            raise ValueError(f"--draft: expected the folder of a smaller model for {self.name}, got none, name one")
        return zoo_part(f"{self.zoo}/draft", "--draft")

    def alone(self) -> BlockVideoPipeline:
        """Return a pipeline with the drafter's model in the target's place."""
        return self.once("alone", self._alone)

    def _alone(self) -> BlockVideoPipeline:
        from mmspec.video.pipeline import BlockVideoPipeline

        whole, small = self.pipeline, self.drafter()
        whole.vae.layout.check(small.vae.layout, "--draft")
        return BlockVideoPipeline(
            small.model, whole.vae, small.encoder or whole.encoder, size=whole.size, blocks=whole.blocks
        )

    def reward(self) -> Reward:
        """Return the scorer of frames."""
        return self.once("reward", lambda: reward_of(self.scorer))


def blocks_of(folder: Path) -> BlockVideoPipeline:
    from mmspec.video.pipeline import BlockVideoPipeline

    return BlockVideoPipeline.from_pretrained(folder)


def open_video(model: str, draft: str | None = None, scorer: str = "reward") -> VideoResources:
    """Open a model of the zoo or of a folder; the drafter and the reward are loaded on first use."""
    check_reward(scorer)
    kind, name = video_kind(model), f"zoo {model}" if model in VIDEO_MODELS else model
    own = model if model in VIDEO_MODELS else ""
    if kind == BLOCKS:
        pipeline = zoo_part(model) if own else blocks_of(Path(model))
        return VideoResources(pipeline, kind, name, own, draft, scorer)
    codes = ImageResources(zoo_part(model), name, own) if own else folder_resources(Path(model))
    if codes.pipeline.model.geometry.frames < 2:
        raise ValueError(
            f"--model: expected a model of videos, got {model!r}, which draws pictures, call `mmspec image`"
        )
    return VideoResources(codes.pipeline, kind, name, own, codes=codes)


@dataclass(frozen=True, slots=True)
class RouterCalibration:
    """Calibration data for routers on held-out videos: draft scores and gains from redrawing, in the statistics of
    requests routed by `Explore`."""

    stats: list[VideoStats]

    def scores(self, reduction: Reduction = "min") -> tuple[list[float], list[float]]:
        """Return the scores of every draft, and for each of them the score of its video's first block."""

        def score(frames: list[float]) -> float:
            return reduced(torch.tensor(frames), reduction).item()

        pairs = [
            (score(block.scores), score(row[0].own_scores))
            for stat in self.stats
            for row in stat.records
            for block in row[1:]
            if block.scores is not None
        ]
        own, anchors = zip(*pairs, strict=True) if pairs else ((), ())
        return list(own), list(anchors)

    def advantage(self) -> Advantage:
        """Train a model of the gain from redrawing a block."""
        return train_advantage(*scored_pairs(self.stats)).model

    def gain(self, model: Advantage, share: float) -> float:
        """Return the predicted gain that this share of the drafts does not exceed."""
        features, _ = scored_pairs(self.stats)
        with torch.no_grad():
            return -threshold_for_share(share, (-model(features)).tolist())


def router_calibration(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    """Return the calibration over `setting.calibration` videos, drawn once per bench."""
    return resources.once(f"calibration {setting.blocks} {setting.seed}", lambda: _explore_videos(resources, setting))


def _explore_videos(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    decoding, stats = SDVG(resources.drafter(), resources.reward(), router=Explore(EXPLORED_SHARE)), []
    prompts = [prompt.prompt for prompt in motion_prompts(setting.calibration, setting.seed, CALIBRATION)]
    for first in range(0, len(prompts), setting.batch):
        part = prompts[first : first + setting.batch]
        seeds = [setting.seed + first + i for i in range(len(part))]
        out = resources.pipeline(part, decoding=decoding, blocks=setting.blocks, seed=seeds)
        raise_errors(out.errors)
        stats.append(out.stats)
    return RouterCalibration(stats)


@dataclass(frozen=True, slots=True)
class PipelineCall:
    pipeline: Any
    arguments: dict[str, Any]


def pipeline_call(call: MethodCall, resources: VideoResources, router: Router | None = None) -> PipelineCall:
    """Return the pipeline and its arguments for a decoding; a router of None keeps the settings' own."""
    if call.method.name == ALONE and call.weights is None:
        return PipelineCall(resources.alone(), {})
    if isinstance(named := call.settings.get("router"), str):
        parse(named, "video", "router", "--router")
    if router is not None:
        call = replace(call, settings={**call.settings, "router": router})
    decoding = call.make(resources if resources.codes is None else resources.codes)
    return PipelineCall(resources.pipeline, {} if call.method.name == PLAIN else {"decoding": decoding})


def decoding_names() -> tuple[str, ...]:
    return names("video", "decoding", models=BLOCKS)


def router_of(text: str) -> Router:
    """Return the router of a text such as "strided:budget=3" or "hybrid:run=3,least=0.2"."""
    return parse(text, "video", "router", "--router").make()


def decoding_of(text: str, resources: VideoResources, options: Mapping[str, Any] | None = None) -> PipelineCall:
    """Return the pipeline and its arguments for a decoding; an option of None was left out."""
    purpose = f" for {resources.name}, a model of blocks"
    call = decoding_call(text, "video", BLOCKS, options, purpose)
    return pipeline_call(call, resources)
