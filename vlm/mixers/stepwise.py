"""A mixer over a drafted tree by its own single steps, for classes without a closed form here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.core.layers.paths import Paths
from mmspec.core.layers.state_layer import StateLayer, States
from mmspec.core.tree import Tree


@dataclass(slots=True)
class Steps:
    """A pass of one mixer whose every node is one step behind its parent: level by level, all rows and siblings at once.
    Behind an accepted path the recorded inputs take their steps again, from the committed states; none is kept in between.

    args, kwargs: of the mixer's call, with [B, N, ...] tensors.   root: the states behind every row's root.
    alone: every node's step is a call of its own, whose bits hang on no other node.
    """

    module: nn.Module
    layer: StateLayer
    args: tuple
    kwargs: dict
    tree: Tree
    alone: bool = False
    root: States | None = None

    @property
    def hidden(self) -> Tensor:
        return self.args[0] if self.args else self.kwargs["hidden_states"]

    def run(self, call: Callable) -> Tensor:
        """The mixer's outputs of all nodes, [B, N, H].   call: its own forward."""
        hidden = self.hidden
        batch, nodes = hidden.shape[:2]
        parent = self.tree.parent.expand(batch, -1).tolist()
        levels = (self.tree.ancestor.sum(-1) - 1).expand(batch, -1).tolist()
        out, states, place = None, self.layer.committed, {}
        for level in range(max(map(max, levels)) + 1):
            at = [(row, node) for row in range(batch) for node in range(nodes) if levels[row][node] == level]
            rows, picked = (torch.tensor(one, device=hidden.device) for one in zip(*at, strict=True))
            came = [place[row, parent[row][node]] if level else row for row, node in at]
            made, states = self._steps(call, states.rows(torch.tensor(came, device=hidden.device)), rows, picked)
            place = {one: index for index, one in enumerate(at)}
            self.root = self.root or states
            out = made.new_zeros(batch, nodes, made.shape[-1]) if out is None else out
            out[rows, picked] = made[:, 0]
        return out

    def _steps(self, call: Callable, states: States, rows: Tensor, nodes: Tensor) -> tuple[Tensor, States]:
        """One step of some nodes behind `states`, at once or each by itself."""
        if not self.alone:
            return self._step(call, states, rows, nodes)
        index = torch.arange(len(rows), device=rows.device)
        made = [self._step(call, states.rows(one), rows[one], nodes[one]) for one in index.split(1)]
        return torch.cat([out for out, _ in made]), States.joined([behind for _, behind in made])

    def _step(self, call: Callable, states: States, rows: Tensor, nodes: Tensor) -> tuple[Tensor, States]:
        size = self.hidden.shape[:2]

        def own(value: object) -> object:
            whole = isinstance(value, Tensor) and value.shape[:2] == size
            return value[rows, nodes][:, None] if whole else value

        with self.layer.serving(states, states) as made:  # a step may write into them: they are copies
            out = call(*map(own, self.args), **{name: own(value) for name, value in self.kwargs.items()})
        return (out[0] if isinstance(out, tuple) else out), made

    def behind(self, states: States, paths: Paths) -> States:
        """See `Part`."""
        path = paths.rows
        longest, device = max(map(len, path)), self.hidden.device
        for step in range(longest):
            rows = torch.tensor([row for row, nodes in enumerate(path) if len(nodes) > step], device=device)
            if step == 0:
                states = states.put(rows, self.root.rows(rows))
                continue
            nodes = torch.tensor([nodes[step] for nodes in path if len(nodes) > step], device=device)
            states = states.put(rows, self._steps(self.module, states.rows(rows), rows, nodes)[1])
        return states
