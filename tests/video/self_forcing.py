"""Self-Forcing's procedure as its paper's code counts it: one buffer a layer, written in place by every pass, two counters."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.video import BlockPlan, CausalWan
from mmspec.video.chunk_cache import AttentionSpan


class InPlaceCache:
    """Noisy passes write where the clean one will; the first write of a block evicts. start: its first frame."""

    def __init__(self, capacity: int, sinks: int, tokens: int, rolls: bool):
        self.capacity, self.sinks, self.tokens, self.rolls = capacity * tokens, sinks * tokens, tokens, rolls
        self.layers: dict[int, dict] = {}
        self.frames = 0

    def begin(self, sizes: tuple[int, ...]) -> None:
        self.new = sizes[0] * self.tokens

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[AttentionSpan]:
        if layer not in self.layers:
            empty = key.new_zeros(*key.shape[:2], self.capacity, key.shape[3])
            self.layers[layer] = {"k": empty, "v": empty.clone(), "global": 0, "local": 0}
        one = self.layers[layer]
        end, evicted = self.frames * self.tokens + self.new, 0
        if self.rolls and end > one["global"] and self.new + one["local"] > self.capacity:
            evicted = self.new + one["local"] - self.capacity
            rolled = one["local"] - evicted - self.sinks
            for which in "kv":
                moved = one[which][:, :, self.sinks + evicted : self.sinks + evicted + rolled].clone()
                one[which][:, :, self.sinks : self.sinks + rolled] = moved
        local = one["local"] + end - one["global"] - evicted
        for which, new in (("k", key), ("v", value)):
            one[which][:, :, local - self.new : local] = new
        one["global"], one["local"] = end, local
        return [AttentionSpan(0, self.new, one["k"][:, :, :local].clone(), one["v"][:, :, :local].clone())]


def table(shift: float) -> tuple[Tensor, Tensor]:
    sigma = torch.linspace(1.0, 0.0, 1001)[:-1]
    sigma = shift * sigma / (1 + (shift - 1) * sigma)
    return sigma, sigma * 1000


def pipeline(
    model: CausalWan,
    text: Tensor,
    first: list[Tensor],
    fresh: list[list[Tensor]],
    plan: BlockPlan,
    window: int | None = None,
    sinks: int = 0,
    steps: tuple[int, ...] = (1000, 750, 500, 250),
    shift: float = 5.0,
) -> tuple[list[Tensor], InPlaceCache]:
    """All blocks, each followed by its clean pass, and the cache at the end."""
    sigma, times = table(shift)
    steps = torch.cat((times, torch.zeros(1)))[1000 - torch.tensor(steps)]
    tokens = first[0].shape[3] * first[0].shape[4] // 4
    total = sum(prompt.shape[2] for prompt in first)
    cache = InPlaceCache(window or total, sinks, tokens, rolls=window is not None)
    prompt, film = model.read(text), []
    near = lambda t: sigma[(times.double() - t.double()).abs().argmin()].reshape(1, 1, 1, 1, 1)  # noqa: E731
    for block, x in enumerate(first):
        cache.frames, time = plan.start(block), torch.ones(x.shape[0], x.shape[2], dtype=torch.long)
        for number, step in enumerate(steps):
            flow = model(x, time * step, prompt, cache)
            clean = (x.double() - near(step).double() * flow.double()).to(flow.dtype)
            if number + 1 < len(steps):
                level = near(steps[number + 1])
                x = (1 - level) * clean + level * fresh[block][number]
        model(clean, time * 0.0, prompt, cache)
        film.append(clean)
    return film, cache
