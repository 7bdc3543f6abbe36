"""The zoo's reward of video frames: a score of how much of a prompt a frame shows."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.video.prompt_encoder import Encode
from mmspec.video.rewards.scores import to_bytes
from mmspec.zoo.architectures.caption_encoder import WIDTH
from mmspec.zoo.architectures.object_detector import conv_block, image_stem
from mmspec.zoo.world.pixels import image_pixels

_PROMPTS = 64  # prompts whose states a reward caches


@dataclass(frozen=True, slots=True)
class RewardSize:
    half: int = 16  # channels at half of the side
    quarter: int = 32
    eighth: int = 48
    blocks: int = 2  # residual, at an eighth of the side
    width: int = 64  # of the attention from words to cells
    heads: int = 4
    depth: int = 2  # layers of this attention

    def __post_init__(self) -> None:
        if any(width < 8 or width % 8 for width in (self.half, self.quarter, self.eighth)) or self.depth < 1:
            raise ValueError(f"RewardSize: expected channels in multiples of 8 and depth >= 1, got {self}; change them")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of {self.heads} heads, got {self.width}; change it")


class FrameReward(nn.Module):
    def __init__(self, size: RewardSize = RewardSize()) -> None:
        super().__init__()
        self.size = size
        self.stem = image_stem(size.half, size.quarter, size.eighth)
        self.blocks = nn.ModuleList(conv_block(size.eighth, size.eighth, 3, 1) for _ in range(size.blocks))
        self.cells = nn.Conv2d(size.eighth, size.width, 1)
        self.words = nn.Linear(WIDTH, size.width)
        self.looks = nn.ModuleList(_WordAttention(size.width, size.heads) for _ in range(size.depth))
        self.head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, 1))

    def forward(self, pixels: Tensor, states: Tensor) -> Tensor:
        """Return the logits [F] of pixels float [F, 3, 64, 64] in -1..1 and prompt states float [F, L, 128], zero at
        padding."""
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        present = (states != 0).any(-1, keepdim=True)
        states, present = (
            part[:, present.any(0)[:, 0]] for part in (states, present)
        )  # words are independent of each other, so common padding can be dropped
        cells, words = rearrange(self.cells(hidden), "b c h w -> b (h w) c"), self.words(states)
        for look in self.looks:
            words = look(words, cells)
        present = present.to(words.dtype)
        return self.head((words * present).sum(1) / present.sum(1).clamp(min=1))[:, 0]


class _WordAttention(nn.Module):
    """Attention of every word over the cells of its frame."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, words: Tensor, cells: Tensor) -> Tensor:
        words = words + self.attention(self.before(words), cells, cells, need_weights=False)[0]
        return words + self.mlp(self.after(words))


@dataclass(frozen=True)
class PromptReward:
    """A trained `FrameReward` with its caption encoder, as a `Reward` of `mmspec.video`. A score is the predicted share
    of the prompt's objects in the frame, 0..1. Each frame is scored alone, so directions of motion are not judged."""

    model: FrameReward
    encoder: Encode
    name: str = "zoo"
    _read: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @torch.no_grad()
    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """Return scores float32 [F]; see `Reward`. Frames of other sizes are scaled to 64x64."""
        device = self.model.words.weight.device
        states = self._states(prompt).to(device)
        pixels = image_pixels(to_bytes(frames)).to(device)
        return self.model(pixels, states.expand(len(pixels), -1, -1)).float().sigmoid()

    def _states(self, prompt: str) -> Tensor:
        """Return the cached states of a prompt, since all blocks of a video use the same prompt."""
        if prompt not in self._read:
            if len(self._read) >= _PROMPTS:
                self._read.clear()
            self._read[prompt] = self.encoder([prompt])
        return self._read[prompt]
