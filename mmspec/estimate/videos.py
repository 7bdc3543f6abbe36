"""Estimates for videos by block (SDVG): a small model drafts, a reward scores, the target regenerates rejections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.estimate.device import Device
from mmspec.estimate.work import BYTES, Work

PASSES = 5  # passes per block: four denoising steps, and a pass that fills the cache
BLOCKS = 9
_TEXT = 512  # tokens of the prompt that every layer's cross-attention reads
_CALLS = 40  # operators of a layer in eager code: two attentions, a feed-forward, six modulations and three norms


@dataclass(frozen=True, slots=True)
class BlockModel:
    """A block-causal video transformer."""

    width: int
    feed_forward: int
    layers: int
    channels: int  # of a latent
    patch: tuple[int, int, int]  # latents of a token, in frames, rows and columns

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BlockModel:
        """Return the model of a diffusers config."""
        width = values["num_attention_heads"] * values["attention_head_dim"]
        return cls(width, values["ffn_dim"], values["num_layers"], values["in_channels"], tuple(values["patch_size"]))

    def tokens(self, frames: int, height: int, width: int) -> int:
        return (frames // self.patch[0]) * (height // self.patch[1]) * (width // self.patch[2])

    def pass_work(self, rows: int, context: int, dtype: str) -> Work:
        """Return the work of a denoising pass over `rows` tokens behind `context` tokens; the text's keys are cached."""
        products = {
            (rows, self.width, self.width): 6.0 * self.layers,
            (rows, self.width, self.feed_forward): float(self.layers),
            (rows, self.feed_forward, self.width): float(self.layers),
        }
        flops = 4 * self.layers * rows * self.width * (context + rows + _TEXT)
        moved = self.layers * BYTES[dtype] * self.width * (2 * (context + _TEXT) + 20 * rows)
        return Work(products, flops, moved, _CALLS * self.layers)


@dataclass(frozen=True, slots=True)
class BlockEstimate:
    """Seconds of a video."""

    target_block: float  # of the target
    draft_block: float  # of the drafter
    plain: float  # the video with the target alone
    drafted: float  # the video with drafts
    speedup: float  # their ratio, where the target reads context only before it generates a block
    eager: float  # the ratio where it also reads every accepted block

    def record(self) -> dict[str, float]:
        return asdict(self)


def estimate_video(
    device: Device,
    target: BlockModel,
    drafter: BlockModel,
    accepted: float,
    *,
    blocks: int = BLOCKS,
    passes: int = PASSES,
    latents: tuple[int, int, int] = (3, 60, 104),
    window: int = 2,
    reward: float = 0.0,
    dtype: str = "bfloat16",
) -> BlockEstimate:
    """Return the seconds of a video, whose first and rejected blocks the target draws. `accepted` is the share of
    drafts that the reward accepts; `passes` are those of a block. `latents` are frames, rows and columns of a block: 3
    frames of 832 x 480 pixels. `window` earlier blocks are visible; `reward` is the seconds of scoring a block."""
    if not 0 <= accepted <= 1:
        raise ValueError(f"--acceptance: expected the share of accepted blocks, 0 to 1, got {accepted:g}, correct it")

    def block(model: BlockModel, count: int) -> float:
        rows = model.tokens(*latents)
        return count * device.seconds(model.pass_work(rows, window * rows, dtype), dtype)

    own, small, once = block(target, passes), block(drafter, passes), block(target, 1)
    plain = blocks * own
    rejected = 1 + (blocks - 1) * (1 - accepted)
    # the drafter reads every block of the target in a pass, to fill its cache
    drafted = rejected * (own + block(drafter, 1)) + (blocks - 1) * (small + reward)
    eager = drafted + (blocks - rejected) * once
    return BlockEstimate(own, small, plain, drafted, plain / drafted, plain / eager)
