"""A recurrent layer's pass over a drafted tree: by closed forms, or by the layer's own single steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mmspec.core.cache import LayerStates, StateLayer
from mmspec.core.tree import Tree
from mmspec.core.tree_recurrence import (
    CommittedPaths,
    RecurrenceUpdate,
    chain_conv,
    conv_columns,
    tree_conv,
    tree_recurrence,
    window_behind,
)


@dataclass(slots=True)
class TreePass:
    """One mixer's pass over a draft.   full: convolutions' windows and inputs, by their number.   brought: the recurrence's.

    columns: see `SlotCache`.   turned: the class keeps its states with the values' axis before the keys'.
    """

    layer: StateLayer
    tree: Tree
    columns: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    full: dict[int, Tensor] = field(default_factory=dict)
    brought: RecurrenceUpdate | None = None
    turned: bool = False

    def conv(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Stands for `causal_conv1d_fn`, whose `hidden_states` are [B, C, K + N]; gives the nodes' columns alone."""
        tree = self.tree
        if tree.straight:
            out = chain_conv(hidden_states, weight, bias, tree.nodes)
        else:
            out = tree_conv(hidden_states, weight, bias, self._read(weight.shape[-1], hidden_states).to(weight.device))
        return (out if activation is None else ACT2FN[activation](out)).to(hidden_states.dtype)

    def _read(self, taps: int, full: Tensor) -> Tensor:
        """What `conv_columns` says of this draft."""
        tree, known = self.tree, self.columns
        size = taps, full.shape[-1] - tree.nodes
        if size not in known:
            known[size] = conv_columns(tree.path, tree.ancestor, *size)
        return known[size]

    def delta(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, use_qk_l2norm_in_kernel: bool = False,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Stands for the (gated, or channelwise gated) delta rule. query, key: [B, N, Hk, K]; value: [B, N, H, V];
        g: [B, N, H] or [B, N, H, K]; beta: [B, N, H]."""
        groups = value.shape[2] // key.shape[2]
        wide = [repeat_heads(x.float(), groups).transpose(1, 2) for x in (query, key)]
        if use_qk_l2norm_in_kernel:
            wide = [x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in wide]
        query, key = wide[0] * wide[0].shape[-1] ** -0.5, wide[1]
        decay = (g if g.dim() == 4 else g[..., None]).float().transpose(1, 2)
        rate = beta.float().transpose(1, 2)[..., None]
        start = self.layer.committed.recurrent[0]
        out, self.brought = tree_recurrence(
            query, key, value.float().transpose(1, 2), decay, start.float(), self.tree.ancestor.to(key.device), rate
        )
        return out.transpose(1, 2).to(value.dtype), start

    def scan(
        self, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
        dt_bias: Tensor | None = None, dt_softplus: bool = False, **kwargs: object,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Stands for the chunked scan of Mamba 2, as single steps do it: without the limit of `dt`. hidden_states:
        [B, N, H, P]; dt: [B, N, H]; A: [H]; B, C: [B, N, G, S]."""
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        dt = (torch.nn.functional.softplus(dt) if dt_softplus else dt).float()
        groups = hidden_states.shape[2] // B.shape[2]
        key, query = (repeat_heads(x.float(), groups).transpose(1, 2) for x in (B, C))
        value = (hidden_states.float() * dt[..., None]).transpose(1, 2)
        decay = (A.float() * dt)[..., None].transpose(1, 2)
        self.turned = True
        start = self.layer.committed.recurrent[0]
        out, self.brought = tree_recurrence(
            query, key, value, decay, start.float().transpose(-1, -2), self.tree.ancestor.to(key.device)
        )
        out = out.transpose(1, 2).contiguous()
        if D is not None:
            out = out + D[:, None] * hidden_states.float()
        return out.to(hidden_states.dtype), start

    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
        """See `Part`."""
        conv, recurrent = dict(states.conv), dict(states.recurrent)
        for number, full in self.full.items():
            conv[number] = window_behind(full, states.conv[number].shape[-1], paths)
        if self.brought is not None:
            moved = self.brought.behind(paths)
            recurrent[0] = (moved.transpose(-1, -2) if self.turned else moved).to(recurrent[0].dtype)
        return LayerStates(conv, recurrent)


def repeat_heads(heads: Tensor, times: int) -> Tensor:
    """Every head [B, N, H, ...] `times` times, one beside the other."""
    return heads if times == 1 else heads.repeat_interleave(times, 2)


# what a mixer's forward calls -> what stands for it; the first set whose names are all its recurrent calls is its form
_CONV = {"causal_conv1d_fn": "conv", "causal_conv1d_update": None}
FORMS: tuple[dict[str, str | None], ...] = (
    {"torch_chunk_gated_delta_rule": "delta", "torch_recurrent_gated_delta_rule": None, **_CONV},
    {"chunk_kimi_delta_attention": "delta", "recurrent_kimi_delta_attention": None, **_CONV},
    {
        "mamba2_chunk_scan": "scan",
        "mamba2_selective_state_update": None,
        "mamba2_split_conv1d_scan_combined": None,
        **_CONV,
    },
    _CONV,
)


def form_of(names: set[str]) -> dict[str, str] | None:
    """What to put in the place of a mixer's functions, None where it has no closed form. names: what its forward calls."""
    rolled = "update_recurrent_state" in names
    for form in FORMS:
        main = [name for name, stand in form.items() if stand]
        if set(main) <= names and rolled == (form is not _CONV):
            return {name: form[name] for name in main}
    return None


def refuse_single_step(*args: object, **kwargs: object) -> None:
    """Stands for single-step functions, which a pass over a draft never reaches."""
    raise RuntimeError("a single step in a pass over a draft: its states would be written in place")


def stand_ins(form: dict[str, str], run: TreePass) -> dict[str, Callable]:
    return {name: getattr(run, stand) for name, stand in form.items()}


@dataclass(slots=True)
class StepwisePass:
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
    root: LayerStates | None = None

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

    def _steps(self, call: Callable, states: LayerStates, rows: Tensor, nodes: Tensor) -> tuple[Tensor, LayerStates]:
        """One step of some nodes behind `states`, at once or each by itself."""
        if not self.alone:
            return self._step(call, states, rows, nodes)
        index = torch.arange(len(rows), device=rows.device)
        made = [self._step(call, states.rows(one), rows[one], nodes[one]) for one in index.split(1)]
        return torch.cat([out for out, _ in made]), LayerStates.joined([behind for _, behind in made])

    def _step(self, call: Callable, states: LayerStates, rows: Tensor, nodes: Tensor) -> tuple[Tensor, LayerStates]:
        size = self.hidden.shape[:2]

        def own(value: object) -> object:
            whole = isinstance(value, Tensor) and value.shape[:2] == size
            return value[rows, nodes][:, None] if whole else value

        with self.layer.serving(states, states) as made:  # a step may write into them: they are copies
            out = call(*map(own, self.args), **{name: own(value) for name, value in self.kwargs.items()})
        return (out[0] if isinstance(out, tuple) else out), made

    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
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
