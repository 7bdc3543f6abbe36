"""All blocks of a clip in two passes: a clean one that leaves keys and values, and a noisy one whose blocks attend to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.video.chunk_cache import Span
from mmspec.video.wan.transformer import CausalWan

Segment = tuple[int, int, Tensor]  # first block, the one after the last, prompt states [B, L, d]
Layers = list[tuple[Tensor, Tensor]]


class CleanContext:
    """What `ChunkCache` is to generation, for training: one pass over the blocks from `first` on.

    layers: keys and values [B, heads, S, dim] of clean blocks from 0 on, layer by layer. A clean pass adds its own, which get
    gradients; of a noisy pass nothing stays, and each of its blocks sees the clean ones before it and itself, as it does when
    it is drawn.   window: frames a block sees, its own included; -1 for all.
    """

    def __init__(self, size: int, window: int, first: int, layers: Layers, clean: bool):
        self.size, self.first, self.layers, self.clean = size, first, layers, clean
        self.reach = window // size if window > 0 else None

    @property
    def frames(self) -> int:
        """Position of the pass's first frame."""
        return self.first * self.size

    def begin(self, sizes: Sequence[int]) -> None:
        if set(sizes) != {self.size}:
            raise ValueError(f"sizes: expected blocks of {self.size} frames, got {list(sizes)}; cut the clip so")
        self.blocks = len(sizes)

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[Span]:
        """One layer's keys and values [B, heads, S, dim] of the pass; what each of its blocks attends to."""
        tokens, own = key.shape[2] // self.blocks, (key, value)
        known = self.layers[layer] if layer < len(self.layers) else tuple(one[:, :, :0] for one in own)
        if self.clean:
            known = tuple(torch.cat(pair, 2) for pair in zip(known, own, strict=True))
            self.layers[layer : layer + 1] = [known]
        spans = []
        for number in range(self.blocks):
            block, cut = self.first + number, slice(number * tokens, (number + 1) * tokens)
            oldest = 0 if self.reach is None else max(0, block + 1 - self.reach)
            seen = [torch.cat((one[:, :, oldest * tokens : block * tokens], mine[:, :, cut]), 2)
                    for one, mine in zip(known, own, strict=True)]  # fmt: skip
            spans.append(Span(cut.start, cut.stop, *seen))
        return spans


def forced_flow(
    model: CausalWan, context: Tensor, noisy: Tensor, times: Tensor, segments: Sequence[Segment], size: int
) -> Tensor:
    """The flow [B, C, F, H, W] of every block of `noisy`, each drawn behind the blocks of `context` before it.

    context, noisy: float [B, C, F, H, W].   times: float [B, F] of the noisy frames; those of the context are 0.
    segments: which prompt holds for which blocks; together all of them, in order.   size: frames of a block.
    """
    layers: Layers = []
    window, end = model.config.local_attn_size, context.shape[2] // size
    read = [(first, last, model.read(text)) for first, last, text in segments]

    def passed(latents: Tensor, time: Tensor, first: int, last: int, prompt: object, clean: bool) -> Tensor:
        cut, cache = slice(first * size, last * size), CleanContext(size, window, first, layers, clean)
        return model(latents[:, :, cut], time[:, cut], prompt, cache, (size,) * (last - first))

    for first, last, prompt in read:
        if first < (last := min(last, end - 1)):  # nothing attends to the last block
            passed(context, torch.zeros_like(times), first, last, prompt, True)
    return torch.cat([passed(noisy, times, first, last, prompt, False) for first, last, prompt in read], 2)
