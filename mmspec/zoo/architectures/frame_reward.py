"""The zoo's reward of video frames: how much of what a prompt names is in a frame, as one number."""

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

_PROMPTS = 64  # whose states a reward keeps


@dataclass(frozen=True, slots=True)
class RewardSize:
    """Channels at half, quarter and eighth of the side, and width, heads and depth of what looks for a prompt's words."""

    half: int = 16
    quarter: int = 32
    eighth: int = 48
    blocks: int = 2
    width: int = 64
    heads: int = 4
    depth: int = 2

    def __post_init__(self) -> None:
        if any(width < 8 or width % 8 for width in (self.half, self.quarter, self.eighth)) or self.depth < 1:
            raise ValueError(f"RewardSize: expected channels in multiples of 8 and depth >= 1, got {self}; change them")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of {self.heads} heads, got {self.width}; change it")


class FrameReward(nn.Module):
    """Pixels float [F, 3, 64, 64] in -1..1 and a prompt's states [F, L, 128] -> logits [F]."""

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
        """states: zero where a prompt has no token, which is not looked for."""
        hidden = self.stem(pixels)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        said = (states != 0).any(-1, keepdim=True)
        states, said = (
            one[:, said.any(0)[:, 0]] for one in (states, said)
        )  # words look apart: what nobody says is left out
        cells, words = rearrange(self.cells(hidden), "b c h w -> b (h w) c"), self.words(states)
        for look in self.looks:
            words = look(words, cells)
        said = said.to(words.dtype)
        return self.head((words * said).sum(1) / said.sum(1).clamp(min=1))[:, 0]


class _WordAttention(nn.Module):
    """Every word looks over the cells of its frame."""

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
    """A trained `FrameReward` with the caption encoder it reads prompts by, as a `Reward` of `mmspec.video`.

    A score is the share, 0..1, of what the prompt names that the frame is taken to show. Each frame is judged by itself: which
    way an object goes is nothing it sees.
    """

    model: FrameReward
    encoder: Encode
    name: str = "zoo"
    _read: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @torch.no_grad()
    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """float32 [F], as `Reward`. Frames of other sizes are brought to 64x64."""
        device = self.model.words.weight.device
        states = self._states(prompt).to(device)
        pixels = image_pixels(to_bytes(frames)).to(device)
        return self.model(pixels, states.expand(len(pixels), -1, -1)).float().sigmoid()

    def _states(self, prompt: str) -> Tensor:
        """Of a prompt, which the blocks of a video ask for one after the other."""
        if prompt not in self._read:
            if len(self._read) >= _PROMPTS:
                self._read.clear()
            self._read[prompt] = self.encoder([prompt])
        return self._read[prompt]
