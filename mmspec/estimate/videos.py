"""Videos block by block: a small model drafts a block, a reward judges it, and the target makes those that fall (SDVG)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.estimate.device import Device
from mmspec.estimate.work import BYTES, Work

PASSES = 5  # of a block: four denoising steps and a pass that fills the cache
BLOCKS = 9
_TEXT = 512  # tokens of the prompt that every layer's cross-attention reads
_CALLS = 40  # operators of a layer in eager code: two attentions, a feed-forward, six modulations and three norms


@dataclass(frozen=True, slots=True)
class BlockModel:
    """A block-causal video transformer.

    Attributes:
        width, feed_forward, layers: Of the transformer.
        channels: Of a latent.
        patch: Latents of a token, in frames, lines and columns.
    """

    width: int
    feed_forward: int
    layers: int
    channels: int
    patch: tuple[int, int, int]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BlockModel:
        """From the fields of a diffusers config."""
        width = values["num_attention_heads"] * values["attention_head_dim"]
        return cls(width, values["ffn_dim"], values["num_layers"], values["in_channels"], tuple(values["patch_size"]))

    @property
    def layer_weights(self) -> int:
        """Numbers of the weights of all layers."""
        return self.layers * (8 * self.width**2 + 2 * self.width * self.feed_forward)

    def tokens(self, frames: int, height: int, width: int) -> int:
        """Tokens of a block of latents."""
        return (frames // self.patch[0]) * (height // self.patch[1]) * (width // self.patch[2])

    def pass_work(self, rows: int, context: int, dtype: str) -> Work:
        """A denoising pass over a block, whose keys of the text are kept.

        Args:
            rows: Tokens of the block.
            context: Tokens of the blocks before it that it sees.
            dtype: Of activations and cache.
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
        target_block, draft_block: Seconds of a block.
        plain, drafted: Seconds of the video.
        speedup: Their ratio, where the target reads context only for blocks that it makes.
        eager: The ratio where it reads every accepted block too.
    """

    target_block: float
    draft_block: float
    plain: float
    drafted: float
    speedup: float
    eager: float

    def record(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


def estimate_video(
    device: Device, target: BlockModel, drafter: BlockModel, accepted: float, *, blocks: int = BLOCKS, passes: int = PASSES,
    latents: tuple[int, int, int] = (3, 60, 104), window: int = 2, reward: float = 0.0, dtype: str = "bfloat16",
) -> BlockEstimate:  # fmt: skip
    """The seconds of a video.

    Args:
        device: For all of it.
        target: Makes the first block and those that the reward refuses.
        drafter: Drafts every further block.
        accepted: The share of drafted blocks that the reward accepts.
        blocks: Of the video.
        passes: Of a block.
        latents: Frames, lines and columns of a block; the default is three frames of 832 x 480 pixels.
        window: Blocks that a block sees.
        reward: Seconds of judging a block.
        dtype: Of everything.

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
    # the drafter passes once over every block that it did not make, to fill its cache
    drafted = rejected * (own + block(drafter, 1)) + (blocks - 1) * (small + reward)
    eager = drafted + (blocks - rejected) * once
    return BlockEstimate(own, small, plain, drafted, plain / drafted, plain / eager)
