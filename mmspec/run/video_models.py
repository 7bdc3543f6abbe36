"""A video model with its drafter and reward, and decodings from text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.methods import MethodCall, names, parse
from mmspec.run.decoding_options import PLAIN, decoding_call
from mmspec.run.image_models import ImageResources, folder_resources
from mmspec.run.model_kinds import BLOCKS, VIDEO_MODELS, video_kind, zoo_part
from mmspec.run.resources import PipelineResources
from mmspec.run.rewards import check_reward, reward_of
from mmspec.video.routing.routers import Router

if TYPE_CHECKING:
    from mmspec.video.pipeline import BlockVideoPipeline
    from mmspec.video.rewards.scores import Reward

ALONE = "draft"


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
