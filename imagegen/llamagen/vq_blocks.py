"""The convolutional encoder and decoder of LlamaGen's image tokenizer, under the published names."""

from __future__ import annotations

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

GROUPS, EPS = 32, 1e-6


def norm(width: int, groups: int) -> nn.GroupNorm:
    return nn.GroupNorm(groups, width, eps=EPS)


def conv(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1)


class ResBlock(nn.Module):
    def __init__(self, before: int, after: int, groups: int):
        super().__init__()
        self.norm1, self.conv1 = norm(before, groups), conv(before, after)
        self.norm2, self.conv2 = norm(after, groups), conv(after, after)
        if before != after:
            self.nin_shortcut = nn.Conv2d(before, after, 1)
        self.same = before == after

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (x if self.same else self.nin_shortcut(x)) + h


class AttnBlock(nn.Module):
    def __init__(self, width: int, groups: int):
        super().__init__()
        self.norm = norm(width, groups)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (rearrange(part(h), "b c h w -> b 1 (h w) c") for part in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(rearrange(h, "b 1 (h w) c -> b c h w", h=x.shape[2]))


class Downsample(nn.Module):
    """A convolution that halves both sides, with padding on the right and at the bottom only."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class VQLevel(nn.Module):
    def __init__(self, before: int, after: int, blocks: int, attention: bool, groups: int):
        super().__init__()
        self.res = nn.ModuleList(ResBlock(before if i == 0 else after, after, groups) for i in range(blocks))
        self.attn = nn.ModuleList(AttnBlock(after, groups) for _ in range(blocks if attention else 0))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.res):
            x = block(x)
            if self.attn:
                x = self.attn[number](x)
        for name in ("downsample", "upsample"):
            if name in self._modules:
                x = self._modules[name](x)
        return x


def middle(width: int, groups: int) -> nn.ModuleList:
    return nn.ModuleList([ResBlock(width, width, groups), AttnBlock(width, groups), ResBlock(width, width, groups)])


class VQEncoder(nn.Module):
    """The encoder from [B, 3, H, W] to [B, z, H / f, W / f], f = 2 ** (levels - 1); conv_blocks.0 is the finest level."""

    def __init__(self, ch: int, multipliers: tuple[int, ...], blocks: int, z: int, groups: int):
        super().__init__()
        widths = [ch, *(ch * m for m in multipliers)]
        last = len(multipliers) - 1
        self.conv_in = conv(3, ch)
        self.conv_blocks = nn.ModuleList()
        for level in range(last + 1):
            block = VQLevel(widths[level], widths[level + 1], blocks, attention=level == last, groups=groups)
            if level < last:
                block.downsample = Downsample(widths[level + 1])
            self.conv_blocks.append(block)
        self.mid = middle(widths[-1], groups)
        self.norm_out, self.conv_out = norm(widths[-1], groups), conv(widths[-1], z)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in (*self.conv_blocks, *self.mid):
            x = block(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class VQDecoder(nn.Module):
    """The decoder [B, z, h, w] to [B, 3, h f, w f]; conv_blocks.0 is the COARSEST level; each has a block more."""

    def __init__(self, ch: int, multipliers: tuple[int, ...], blocks: int, z: int, groups: int):
        super().__init__()
        widths = [ch * m for m in reversed(multipliers)]
        last = len(multipliers) - 1
        self.conv_in = conv(z, widths[0])
        self.mid = middle(widths[0], groups)
        self.conv_blocks = nn.ModuleList()
        for level, width in enumerate(widths):
            block = VQLevel(widths[max(level - 1, 0)], width, blocks + 1, attention=level == 0, groups=groups)
            if level < last:
                block.upsample = Upsample(width)
            self.conv_blocks.append(block)
        self.norm_out, self.conv_out = norm(widths[-1], groups), conv(widths[-1], 3)

    def forward(self, z: Tensor) -> Tensor:
        x = self.conv_in(z)
        for block in (*self.mid, *self.conv_blocks):
            x = block(x)
        return self.conv_out(F.silu(self.norm_out(x)))
