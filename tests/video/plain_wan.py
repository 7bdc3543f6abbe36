"""Causal Wan written out: one video, its past a list of frames, no cache, no classes of ours.

Keys are kept unturned, so positions are whatever they are said to be when a pass looks at them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.video import CausalWan


@dataclass
class Frame:
    """One clean frame of the past. number: in the film.   keys, values: per layer, [heads, T, dim], not turned."""

    number: int
    keys: list[Tensor]
    values: list[Tensor]


class PlainWan:
    """The same weights as a `CausalWan`, used without it."""

    def __init__(self, model: CausalWan):
        self.w, c = model.state_dict(), model.config
        self.heads, self.layers, self.eps, self.freq = c.num_attention_heads, c.num_layers, c.eps, c.freq_dim

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def normal(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)

    def query_or_key(self, part: str, which: str, x: Tensor) -> Tensor:
        x = self.linear(f"{part}.to_{which}", x)
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.w[f"{part}.norm_{which}.weight"]
        return self.split(x)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self.heads, -1)).transpose(0, 1)  # [heads, S, dim]

    def times(self, times: Sequence[float]) -> tuple[Tensor, Tensor]:
        rows = []
        for time in times:
            angles = [time * 10000 ** (-i / (self.freq // 2)) for i in range(self.freq // 2)]
            rows.append([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
        name = "condition_embedder.time_embedder.linear"
        time = self.linear(f"{name}_2", F.silu(self.linear(f"{name}_1", torch.tensor(rows))))
        return time, self.linear("condition_embedder.time_proj", F.silu(time)).unflatten(1, (6, -1))

    def text(self, text: Tensor) -> Tensor:
        name = "condition_embedder.text_embedder.linear"
        return self.linear(f"{name}_2", F.gelu(self.linear(f"{name}_1", text), approximate="tanh"))

    def turned(self, x: Tensor, numbers: Sequence[int], rows: int, columns: int) -> Tensor:
        """[heads, S, dim] of whole frames at positions `numbers`, token by token."""
        dim = x.shape[2]
        side = 2 * (dim // 6)
        angles = []
        for number in numbers:
            for row in range(rows):
                for column in range(columns):
                    places = ((number, dim - 2 * side), (row, side), (column, side))
                    angles.append([at * 10000.0 ** (-2 * i / size) for at, size in places for i in range(size // 2)])
        turn = torch.polar(torch.ones(len(angles), dim // 2).double(), torch.tensor(angles, dtype=torch.float64))
        pairs = torch.view_as_complex(x.double().unflatten(2, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(2).float()

    @torch.no_grad()
    def block(
        self,
        latents: Tensor,
        times: Sequence[float],
        text: Tensor,
        past: Sequence[Frame],
        first: int,
        window: int | None = None,
        sinks: int = 0,
        relative: bool = False,
    ) -> tuple[Tensor, list[Frame]]:
        """The flow of a block [C, F, H, W] whose first frame is number `first`, and its frames as a later past.

        window, sinks: frames that are seen, own ones included; the oldest behind the sinks go first.   relative: positions
        are those among the frames that are seen.
        """
        frames, rows, columns = latents.shape[1], latents.shape[2] // 2, latents.shape[3] // 2
        seen = list(past)
        while window is not None and len(seen) + frames > window:
            del seen[sinks]
        old, own = [frame.number for frame in seen], list(range(first, first + frames))
        if relative:
            old, own = list(range(len(old))), list(range(len(old), len(old) + frames))
        patches = latents.unflatten(3, (columns, 2)).unflatten(2, (rows, 2)).permute(1, 2, 4, 0, 3, 5)  # F h w C p p
        weight = self.w["patch_embedding.weight"]
        x = F.linear(patches.reshape(frames * rows * columns, -1), weight.flatten(1), self.w["patch_embedding.bias"])
        time, modulation = (time.repeat_interleave(rows * columns, 0) for time in self.times(times))
        made = [Frame(first + i, [], []) for i in range(frames)]
        for layer in range(self.layers):
            name = f"blocks.{layer}"
            m = self.w[f"{name}.scale_shift_table"] + modulation
            y = self.normal(x) * (1 + m[:, 1]) + m[:, 0]
            q, k = (self.query_or_key(f"{name}.attn1", which, y) for which in "qk")
            v = self.split(self.linear(f"{name}.attn1.to_v", y))
            for frame, one, other in zip(made, k.chunk(frames, 1), v.chunk(frames, 1), strict=True):
                frame.keys.append(one), frame.values.append(other)
            keys = torch.cat([frame.keys[layer] for frame in seen] + [k], 1)
            values = torch.cat([frame.values[layer] for frame in seen] + [v], 1)
            q, keys = self.turned(q, own, rows, columns), self.turned(keys, old + own, rows, columns)
            x = x + self.attended(f"{name}.attn1", q, keys, values) * m[:, 2]
            weight, bias = self.w[f"{name}.norm2.weight"], self.w[f"{name}.norm2.bias"]
            q = self.query_or_key(f"{name}.attn2", "q", self.normal(x) * weight + bias)
            said = self.text(text)
            k, v = self.query_or_key(f"{name}.attn2", "k", said), self.split(self.linear(f"{name}.attn2.to_v", said))
            x = x + self.attended(f"{name}.attn2", q, k, v)
            y = self.linear(f"{name}.ffn.net.0.proj", self.normal(x) * (1 + m[:, 4]) + m[:, 3])
            x = x + self.linear(f"{name}.ffn.net.2", F.gelu(y, approximate="tanh")) * m[:, 5]
        shift, scale = (self.w["scale_shift_table"][0] + time[:, None]).unbind(1)
        x = self.linear("proj_out", self.normal(x) * (1 + scale) + shift)
        x = x.reshape(frames, rows, columns, 2, 2, -1).permute(5, 0, 1, 3, 2, 4)
        return x.reshape(latents.shape), made

    def attended(self, name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = ((q @ k.transpose(1, 2)) / q.shape[2] ** 0.5).softmax(2) @ v
        return self.linear(f"{name}.to_out.0", out.transpose(0, 1).flatten(1))


def few_steps(flow, noise: Sequence[Tensor], times: Sequence[float], shift: float) -> Tensor:  # noqa: ANN001
    """A block from its reserved noise: predicted clean and noised anew from step to step. Levels are those of the table's
    timestep that is nearest."""
    table = [shift * s / (1 + (shift - 1) * s) for s in (1 - i / 1000 for i in range(1000))]

    def level(time: float) -> float:
        return min(table, key=lambda one: abs(1000 * one - time))

    x = noise[0]
    for number, time in enumerate(times):
        clean = x.double() - level(time) * flow(x, time).double()
        if number + 1 == len(times):
            return clean.float()
        following = level(times[number + 1])
        x = ((1 - following) * clean + following * noise[number + 1]).float()
    raise AssertionError


def warped(steps: Sequence[float], shift: float) -> list[float]:
    return [1000 * shift * s / (1000 + (shift - 1) * s) for s in steps]


Prompts = Mapping[int, Tensor]  # by the block from which on they hold, [L, d] each


def said(prompts: Prompts, block: int) -> Tensor:
    return prompts[max(first for first in prompts if first <= block)]
