"""One call from prompts to videos, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from einops import rearrange

from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun, run_to_end
from mmspec.core.pipeline_parts import Load, decoding_from_text, fitted_pipeline
from mmspec.io.interrupts import stop_requests
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.io.readers import naming
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
from mmspec.video.pipeline_files import FILES, read_parts, save_parts
from mmspec.video.prompt_encoder import Encode, PromptReader
from mmspec.video.rewards.by_name import load_reward
from mmspec.video.vae import StreamingVAE


def _draft(weights: str, pipe: BlockVideoPipeline) -> BlockVideoPipeline:
    """The smaller pipeline that a text names."""
    return fitted_pipeline(from_zoo(weights) or BlockVideoPipeline.from_pretrained(weights), BlockVideoPipeline, pipe)


class BlockVideoPipeline:
    """Prompts into videos with one block video model, alone or with a smaller model that drafts for it.

    model: `WanVideo`, `AnyFlowVideo`, `HeliosVideo`, `SkyReelsVideo`.   vae: of its latents.
    encoder: from texts to states, such as a `PromptEncoder`; None where prompts come encoded.
    size: height and width in pixels, and blocks: of a video; the defaults of calls.
    Raises ValueError for a vae of other latents and a size that its stride does not divide.
    """

    loaders: ClassVar[Mapping[str, Load]] = {"draft": _draft, "reward": load_reward}

    def __init__(
        self, model: BlockVideoModel, vae: StreamingVAE, encoder: Encode | None = None, *, size: Sequence[int] = (480, 832),
        blocks: int = 7,
    ):  # fmt: skip
        if model.channels != vae.layout.channels:
            raise ValueError(f"vae: expected latents of {model.channels} channels as the model's, got {vae.layout.channels}; "
                             "use the autoencoder the model was trained with")  # fmt: skip
        self.model, self.vae, self.encoder = model, vae, encoder
        self.size, self.blocks = tuple(size), _blocks(blocks)
        self._grid(self.size)

    def __call__(self, prompts: Prompts, **settings: Any) -> VideoOutput:
        """One video per prompt.

        prompts: texts; or float [B, L, d], encoded.   decoding: None draws every block with the model itself, through the same
        loop. So does "auto": drafted blocks that stand are not the model's own, and are never taken unasked. Else a decoding
        such as `SDVG`, or its text, "sdvg:threshold=0.5@FOLDER" with the folder of the smaller pipeline.
        blocks: of every video.   size: height and width in pixels.
        seed: an int, one int per row, or None to draw one from torch's global generator.
        switch: other prompts from a block on, one for all rows or one a row; that block is the target's, as the first is.
        reward_prompt: what blocks are scored by, in place of the prompts: the short text that a person wrote, where prompts
        are long rewordings; texts, or texts by the block from which on they hold.
        pixels: False leaves latents undecoded, but for what a reward looks at.
        listener(row, block, frames): every block once it is finished, uint8 [F, H, W, 3], or None without pixels.
        Returns a `VideoOutput`. Raises ValueError for unsupported combinations, and VideoStopped, which holds the finished
        blocks, where SIGINT or SIGTERM came, once the running round is done.
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
        """A request that has not run yet: call its `step()`, which finishes a block of every row, until it returns False, and
        `output` whenever there is something to see. Arguments as in the call."""
        decoding = PlainVideoDecoding() if decoding is None or decoding == "auto" else self.decoding(decoding)
        if isinstance(decoding, type) or not hasattr(decoding, "prepare"):
            raise ValueError(f"decoding: expected None, 'auto', a decoding of blocks such as SDVG or its text, got "
                             f"{decoding!r}; leave it out or make one")  # fmt: skip
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
        """The decoding that a text such as "sdvg:threshold=0.5@FOLDER" asks for; an object as it is.   Raises ValueError as
        `parse`, and where the smaller pipeline or the reward is not at hand."""
        return decoding_from_text(text, self, "video", "blocks")

    def output(self, run: DecodingRun) -> VideoOutput:
        """The finished blocks of a request."""
        target: BlockTarget = run.target
        videos = [_video(row) for row in target.rows] if target.request.pixels else []
        latents = [torch.cat(row.committed, 2)[0] if row.committed else None for row in target.rows]
        return VideoOutput(videos, latents, run.stats, dict(target.errors))

    def _grid(self, size: Sequence[int]) -> tuple[int, int]:
        stride = self.vae.layout.stride
        sides = size if isinstance(size, Sequence) else ()
        if [type(side) for side in sides] != [int, int] or min(sides) < 1 or any(side % stride for side in sides):
            raise ValueError(
                f"size: expected height and width, multiples of {stride}, got {size!r:.60}; use such a size"
            )
        return size[0] // stride, size[1] // stride

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path, *, dtype: torch.dtype | None = None) -> Self:
        """The pipeline saved in a folder, or in a hub repository named by its id (the only case that uses the network).

        dtype: of transformer and text encoder, None for the files'. The autoencoder runs in float32.
        Raises ValueError for a folder that is no pipeline, and as the loaders do.
        """
        folder = folder_of(path_or_repo, FILES)
        with naming(folder):
            model, vae, encoder, settings = read_parts(folder, cls.__name__)
            pipe = cls(model, vae, encoder, **settings)
        return pipe if dtype is None else pipe.to(dtype=dtype)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the pipeline; the index comes last.   Raises ValueError for parts that are not Wan's, which their own
        libraries save."""
        settings = {"size": list(self.size), "blocks": self.blocks}
        save_parts(Path(folder), type(self).__name__, self.model, self.vae, self.encoder, settings)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Moves everything; `dtype` is for transformer and text encoder, the autoencoder stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if isinstance(vae := getattr(self.vae, "model", None), torch.nn.Module):
            vae.to(device=device)
        if isinstance(encoder := getattr(self.encoder, "encoder", None), torch.nn.Module):
            encoder.to(device=device, dtype=dtype)
        return self


def _blocks(blocks: Any) -> int:
    if whole("blocks", blocks) < 1:
        raise ValueError(f"blocks: expected at least 1, got {blocks}; ask for one or more")
    return int(blocks)


def _video(row: VideoRowState) -> np.ndarray | None:
    return rearrange(torch.cat(row.frames), "n c h w -> n h w c").contiguous().numpy() if row.frames else None
