"""A video model and what belongs to it: held-out prompts of motion, its drafter and its reward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.pipeline_parts import read_part
from mmspec.evaluate.engine.domain import Resources
from mmspec.evaluate.image.resources import GenerationRequest, ImageResources, folder_resources
from mmspec.evaluate.model_kinds import BLOCKS, VIDEO_MODELS, video_kind, zoo_part
from mmspec.evaluate.quality.rewards import check_reward, reward_of
from mmspec.zoo.world.video import HELD_OUT, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.video.pipeline import BlockVideoPipeline
    from mmspec.video.rewards.scores import Reward


FIRST = HELD_OUT + (1 << 18)  # behind the scenes that trainers measure on
CALIBRATION = FIRST + (1 << 15)  # of what thresholds and learned routers are fitted on
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next


def motion_prompts(count: int, seed: int = 0, first: int = FIRST) -> list[GenerationRequest]:
    """`count` prompts of motion; those of different seeds and of another `first` are disjoint."""
    texts = [video_prompt(sample_video_scene(first + STEP * seed + i), seed) for i in range(count)]
    return [GenerationRequest(text, text) for text in texts]


def requests_of(resources: VideoResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """Prompts, or labels in turn for a model that draws classes."""
    config = getattr(getattr(resources.pipeline.model, "transformer", None), "config", None)
    if getattr(config, "model_type", None) == "c2i":
        return [GenerationRequest(i % config.num_classes, f"class {i % config.num_classes}") for i in range(count)]
    return motion_prompts(count, seed)


def cases(resources: VideoResources, setting: VideoSetting) -> list[list[GenerationRequest]]:
    """The requests of every batch of a setting."""
    return setting.batches(requests_of(resources, setting.prompts, setting.seed))


@dataclass(slots=True)
class VideoResources(Resources):
    """pipeline: a `BlockVideoPipeline`, or an image pipeline whose model draws several frames.   kind: "blocks" or "codes".
    name: what tables call it.   zoo: its name in the zoo, "" for a folder.   draft: folder of the drafter, None for the
    zoo's own.   scorer: see `reward_of`.   codes: the same pipeline as `mmspec image` has it, of models of codes.
    """

    pipeline: Any
    kind: str
    name: str
    zoo: str = ""
    draft: str | None = None
    scorer: str = "reward"
    codes: ImageResources | None = None

    @property
    def model(self) -> Any:
        """The pipeline's model."""
        return self.pipeline.model

    def part(self, name: str, source: str | None = None) -> Any:
        """ "draft", the smaller pipeline, or "reward", what scores frames.   Raises ValueError where there is none."""
        if source is not None:
            return read_part(self.pipeline, name, source)
        return self.drafter() if name == "draft" else self.reward()

    def drafter(self) -> BlockVideoPipeline:
        """The smaller pipeline.   Raises ValueError where there is none, and for one of another kind."""
        return self.once("drafter", self._drafter)

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
        """The drafter's model in the place of the target's."""
        return self.once("alone", self._alone)

    def _alone(self) -> BlockVideoPipeline:
        from mmspec.video.pipeline import BlockVideoPipeline

        whole, small = self.pipeline, self.drafter()
        whole.vae.layout.check(small.vae.layout, "--draft")
        return BlockVideoPipeline(
            small.model, whole.vae, small.encoder or whole.encoder, size=whole.size, blocks=whole.blocks
        )

    def reward(self) -> Reward:
        """What scores frames.   Raises ValueError as `reward_of` does."""
        return self.once("reward", lambda: reward_of(self.scorer))


def blocks_of(folder: Path) -> BlockVideoPipeline:
    """The pipeline of blocks saved in a folder."""
    from mmspec.video.pipeline import BlockVideoPipeline

    return BlockVideoPipeline.from_pretrained(folder)


def open_video(model: str, draft: str | None = None, scorer: str = "reward") -> VideoResources:
    """A model of the zoo or of a folder; drafter and reward are loaded on first use.

    Raises ValueError where there is none, and for one that draws single pictures.
    """
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
