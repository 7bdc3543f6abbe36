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
    """A block-causal video transformer.

    Attributes:
        width: The width of the transformer.
        feed_forward: The width of its feed-forward layers.
        layers: The number of layers.
        channels: The channels of a latent.
        patch: Latents of a token, in frames, rows and columns.
    """

    width: int
    feed_forward: int
    layers: int
    channels: int
    patch: tuple[int, int, int]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BlockModel:
        """Return the model of a diffusers config."""
        width = values["num_attention_heads"] * values["attention_head_dim"]
        return cls(width, values["ffn_dim"], values["num_layers"], values["in_channels"], tuple(values["patch_size"]))

    @property
    def layer_weights(self) -> int:
        """The number of weights of all layers."""
        return self.layers * (8 * self.width**2 + 2 * self.width * self.feed_forward)

    def tokens(self, frames: int, height: int, width: int) -> int:
        """Return the tokens of a block of latents."""
        return (frames // self.patch[0]) * (height // self.patch[1]) * (width // self.patch[2])

    def pass_work(self, rows: int, context: int, dtype: str) -> Work:
        """Return the work of a denoising pass over a block; the keys of the text are cached.

        Args:
            rows: Tokens of the block.
            context: Tokens of the visible earlier blocks.
            dtype: The dtype of activations and cache.
        """
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
    """Seconds of a video.

    Attributes:
        target_block: Seconds of a block of the target.
        draft_block: Seconds of a block of the drafter.
        plain: Seconds of the video with the target alone.
        drafted: Seconds of the video with drafts.
        speedup: Their ratio, where the target reads context only before it generates a block.
        eager: The ratio where it also reads every accepted block.
    """

    target_block: float
    draft_block: float
    plain: float
    drafted: float
    speedup: float
    eager: float

    def record(self) -> dict[str, float]:
        """Return the estimate as JSON."""
        return asdict(self)


def estimate_video(
    device: Device, target: BlockModel, drafter: BlockModel, accepted: float, *, blocks: int = BLOCKS, passes: int = PASSES,
    latents: tuple[int, int, int] = (3, 60, 104), window: int = 2, reward: float = 0.0, dtype: str = "bfloat16",
) -> BlockEstimate:  # fmt: skip
    """Return the seconds of a video.

    Args:
        device: The device of all parts.
        target: The model of the first block and of rejected blocks.
        drafter: The model that drafts every other block.
        accepted: The share of drafted blocks that the reward accepts.
        blocks: Blocks of the video.
        passes: Passes per block.
        latents: Frames, rows and columns of a block; by default three frames of 832 x 480 pixels.
        window: The number of visible earlier blocks.
        reward: Seconds of scoring a block.
        dtype: The dtype of weights, activations and cache.

    Raises:
        ValueError: `accepted` is no share.
    """
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
