"""A head's network along a schedule: what does not depend on the state is computed once for many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP

Modulation = tuple[Tensor, ...]  # shift, 1 + scale, and but for the last layer gate
AHEAD = 512  # pairs of a step and a token whose modulations are computed at once


class TimedMLP:
    """A network at the timesteps [T] of a schedule, which are embedded once."""

    def __init__(self, net: DenoisingMLP, timesteps: Tensor):
        self.net = net
        with torch.no_grad():
            self.time = net.time_embed(timesteps.to(net.input_proj.weight.device))

    def about(self, z: Tensor) -> Conditioned:
        """The conditions of R tokens, z [R, condition], or [2, R, condition] of two branches."""
        return Conditioned(self, z)

    def __call__(self, x: Tensor, step: Tensor | int, about: Conditioned, row: Tensor | None = None) -> Tensor:
        """[C, n, out] of states x [n, d] under each of C branches.

        step: one for all states, or int64 [n].   row: int64 [n], the token each state is of; None for one state a token.
        """
        if isinstance(step, int) and row is None:
            modulations = about.at(step)
        else:
            row = torch.arange(len(x), device=x.device) if row is None else row
            step = torch.full_like(row, step) if isinstance(step, int) else step
            modulations = about.of(step, row)
        x = x if about.branches == 1 else x.repeat(about.branches, 1)
        return self.net.denoise(x, modulations).unflatten(0, (about.branches, -1))


class Conditioned:
    """What a network does at each step of a schedule for R tokens, whatever their states: the modulations of its layers, as
    `DenoisingMLP.modulations` gives them, for as many steps at once as AHEAD has room for.
    """

    def __init__(self, timed: TimedMLP, z: Tensor):
        self.timed, net = timed, timed.net
        self.embedded = net.cond_embed((z if z.dim() == 3 else z[None]).to(net.dtype))  # [C, R, width]
        self.branches, tokens = self.embedded.shape[:2]
        self._most = max(AHEAD // max(tokens, 1), 1)
        self._first, self._made, self._views = 0, None, []  # of the steps first, first + 1...

    def at(self, step: int) -> list[Modulation]:
        """Per layer what all tokens get at one step, each [C R, width]."""
        self._make(step)
        return self._views[step - self._first]

    def of(self, step: Tensor, row: Tensor) -> list[Modulation]:
        """Per layer what the tokens `row` get at the steps `step`, int64 [n], each [C n, width]."""
        steps, tokens = len(self.timed.time), self.embedded.shape[1]
        if steps > self._most:
            made = self.timed.net.modulations((self.timed.time[step] + self.embedded[:, row]).flatten(0, 1))
            return [layer.unbind(-2) for layer in made]
        self._make(steps - 1)
        branch = torch.arange(self.branches, device=step.device)[:, None]
        chosen = ((step * self.branches + branch) * tokens + row).flatten()
        return self._layers(self._made.flatten(0, 1).index_select(0, chosen))

    def _make(self, step: int) -> None:
        """The table [steps, C R, all parts of all layers] that holds a step. Walks go down, so it holds those below too."""
        if self._made is not None and self._first <= step < self._first + len(self._views):
            return
        self._first = max(step + 1 - self._most, 0)
        time = self.timed.time[self._first : step + 1]
        made = self.timed.net.modulations(time[:, None, None] + self.embedded)
        self._made = torch.cat([layer.flatten(-2) for layer in made], -1).flatten(1, 2)
        layers = [zip(*(part.unbind(0) for part in layer), strict=True) for layer in self._layers(self._made)]
        self._views = [list(at) for at in zip(*layers, strict=True)]

    def _layers(self, made: Tensor) -> list[Modulation]:
        """Views of made [..., all parts of all layers]: three a block, two of the last layer."""
        parts = made.split(self.embedded.shape[-1], -1)
        return [parts[first : first + 3] for first in range(0, len(parts), 3)]
