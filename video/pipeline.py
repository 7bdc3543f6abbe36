"""The pipeline from prompts to videos, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text
from mmspec.core.pipeline_folder import SavedPipeline, smaller_pipeline
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DecodingRun, run_to_end
from mmspec.io.interrupts import stop_requests
from mmspec.io.validation import boolean, whole
from mmspec.video.decoding.output import VideoOutput, VideoStopped
from mmspec.video.decoding.request import (
    Listener,
    Prompts,
    VideoRequest,
    VideoRowState,
    prompt_rows,
    prompts_by_block,
    reward_prompts,
)
from mmspec.video.decoding.target import BlockTarget
from mmspec.video.decoding.undrafted import PlainVideoDecoding, VideoDecoding
from mmspec.video.model import BlockVideoModel
from mmspec.video.pipeline_files import COMPONENTS, VideoIndex, read_model, written_model
from mmspec.video.prompt_encoder import Encode, PromptReader
from mmspec.video.rewards.by_name import load_reward
from mmspec.video.vae import StreamingVAE


class BlockVideoPipeline(SavedPipeline):
    """Turns prompts into videos with a block video model, alone or with a smaller model as its drafter.

    Args:
        model: `WanVideo`, `AnyFlowVideo`, `HeliosVideo` or `SkyReelsVideo`.
        vae: The autoencoder of its latents.
        encoder: From texts to states, such as a `PromptEncoder`; None where prompts are already encoded.
        size: The default height and width of a video in pixels.
        blocks: The default number of blocks of a video.

    Raises:
        ValueError: The autoencoder has other latents, or its stride does not divide the size.
    """

    loaders: ClassVar[Mapping[str, Load]] = {"draft": smaller_pipeline, "reward": load_reward}
    components, Index, settings, needs_index = COMPONENTS, VideoIndex, ("size", "blocks"), True
    files = ("*.json", "*.safetensors", "*.model")

    def __init__(
        self,
        model: BlockVideoModel,
        vae: StreamingVAE,
        encoder: Encode | None = None,
        *,
        size: Sequence[int] = (480, 832),
        blocks: int = 7,
    ):
        if model.channels != vae.layout.channels:
            raise ValueError(
                f"vae: expected latents of {model.channels} channels as the model's, got {vae.layout.channels}; "
                "use the autoencoder the model was trained with"
            )
        self.model, self.vae, self.encoder = model, vae, encoder
        self.size, self.blocks = tuple(size), _blocks(blocks)
        self._grid(self.size)

    def __call__(self, prompts: Prompts, **settings: Any) -> VideoOutput:
        """Generate a video per prompt.

        Args:
            prompts: Texts, or encoder states float [B, L, d].
            decoding: A decoding such as `SDVG`, or its text, "sdvg:threshold=0.5@FOLDER" with the folder of the smaller
                pipeline. None and "auto" let the model generate every block, since drafted blocks would be relaxed.
            blocks: The number of blocks of every video.
            size: Height and width in pixels.
            seed: An int, an int per row, or None to draw a seed from torch's global generator.
            switch: Other prompts by the block from which they apply, for all rows or per row. The target generates that
                block, as it does the first.
            reward_prompt: The texts that blocks are scored by instead of the prompts, also by block: the short text
                that a person wrote, where prompts are long rewordings.
            pixels: False skips the decoding of latents, except for frames that a reward reads.
            listener: Called as listener(row, block, frames) with every finished block, uint8 [F, H, W, 3], or None
                without pixels.

        Returns:
            A `VideoOutput`.

        Raises:
            ValueError: The settings are invalid or unsupported together.
            VideoStopped: SIGINT or SIGTERM came during a round. The error holds the finished blocks.
        """
        with stop_requests() as request:
            run = run_to_end(lambda: self.start(prompts, **settings), lambda: request.signal != 0)
        output = self.output(run)
        if not run.target.done:
            raise VideoStopped(output, run.target.request.blocks, request.signal)
        return output

    def start(
        self,
        prompts: Prompts,
        *,
        decoding: VideoDecoding | str | None = None,
        blocks: int | None = None,
        size: Sequence[int] | None = None,
        seed: int | Sequence[int] | None = None,
        switch: Mapping[int, Prompts] | None = None,
        reward_prompt: Prompts | Mapping[int, Prompts] | None = None,
        pixels: bool = True,
        listener: Listener | None = None,
    ) -> DecodingRun:
        """Prepare a request without running it; the arguments are those of the call. `step()` finishes a block of every
        row until it returns False; call `output` at any time."""
        decoding = PlainVideoDecoding() if decoding is None or decoding == "auto" else self.decoding(decoding)
        if isinstance(decoding, type) or not hasattr(decoding, "prepare"):
            raise ValueError(
                f"decoding: expected None, 'auto', a decoding of blocks such as SDVG or its text, got "
                f"{decoding!r}; leave it out or make one"
            )
        blocks = self.blocks if blocks is None else _blocks(blocks)
        grid = self._grid(self.size if size is None else size)
        timeline = prompts_by_block(prompt_rows(prompts), switch, blocks, "switch")
        texts = reward_prompts(timeline, reward_prompt, blocks)
        keys = Keys.of(seed, len(timeline), self.model.device)
        request = VideoRequest(
            timeline,
            texts,
            keys,
            grid,
            blocks,
            self.vae,
            PromptReader(self.encoder),
            boolean("pixels", pixels),
            listener,
        )
        target, drafter, rule = decoding.prepare(self.model, request)
        return DecodingRun(target, drafter, rule, keys, target.stats)

    __call__.__signature__ = signature(start).replace(return_annotation="VideoOutput")

    def decoding(self, text: Any) -> Any:
        """Return the decoding of a text such as "sdvg:threshold=0.5@FOLDER"; an object is returned unchanged."""
        return decoding_from_text(text, self, "video", "blocks")

    def output(self, run: DecodingRun) -> VideoOutput:
        """Return the finished blocks of a request."""
        target: BlockTarget = run.target
        videos = [_video(row) for row in target.rows] if target.request.pixels else []
        latents = [torch.cat(row.committed, 2)[0] if row.committed else None for row in target.rows]
        return VideoOutput(videos, latents, run.stats, dict(target.errors))

    def _grid(self, size: Sequence[int]) -> tuple[int, int]:
        stride = self.vae.layout.stride
        size = size.tolist() if isinstance(size, np.ndarray | Tensor) else size
        sides = [whole("size", side, 1) for side in size] if isinstance(size, Sequence) else []
        if len(sides) != 2 or any(side % stride for side in sides):
            raise ValueError(
                f"size: expected height and width, multiples of {stride}, got {size!r:.60}; use such a size"
            )
        return sides[0] // stride, sides[1] // stride

    @classmethod
    def _read_settings(cls, index: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": read_model(index), **super()._read_settings(index)}

    @classmethod
    def _assemble(cls, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> Self:
        model = settings["model"](parts["transformer"], parts["vae"])
        return cls(model, parts["vae"], parts["text_encoder"], **super()._read_settings(settings))

    def _written_settings(self) -> dict[str, Any]:
        return {**written_model(self), "size": list(self.size), "blocks": self.blocks}


def _blocks(blocks: Any) -> int:
    if whole("blocks", blocks) < 1:
        raise ValueError(f"blocks: expected at least 1, got {blocks}; ask for one or more")
    return int(blocks)


def _video(row: VideoRowState) -> np.ndarray | None:
    return rearrange(torch.cat(row.frames), "n c h w -> n h w c").contiguous().numpy() if row.frames else None
