"""The pass of a recurrent layer over a draft tree, by closed forms or by the layer's own single steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from mmspec.core.layers.tree_recurrence import (
    CommittedPaths,
    RecurrenceUpdate,
    chain_conv,
    conv_columns,
    tree_conv,
    tree_recurrence,
    window_behind,
)
from mmspec.core.round.cache import LayerStates, StateLayer
from mmspec.core.round.tree import Tree


@dataclass(slots=True)
class TreePass:
    """The pass of a mixer over a draft, by closed forms."""

    layer: StateLayer
    tree: Tree
    columns: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # see `SlotCache`
    full: dict[int, Tensor] = field(default_factory=dict)  # by number, windows and inputs of convolutions
    brought: RecurrenceUpdate | None = None
    turned: bool = False  # whether the class stores its states with the value axis before the key axis

    def conv(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Replace `causal_conv1d_fn` with `hidden_states` [B, C, K + N]; return the columns of the nodes."""
        tree = self.tree
        if tree.straight:
            out = chain_conv(hidden_states, weight, bias, tree.nodes)
        else:
            out = tree_conv(hidden_states, weight, bias, self._read(weight.shape[-1], hidden_states).to(weight.device))
        return (out if activation is None else ACT2FN[activation](out)).to(hidden_states.dtype)

    def _read(self, taps: int, full: Tensor) -> Tensor:
        tree, known = self.tree, self.columns
        size = taps, full.shape[-1] - tree.nodes
        if size not in known:
            known[size] = conv_columns(tree.path, tree.ancestor, *size)
        return known[size]

    def delta(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Replace the delta rule, gated per head or per channel. `query` and `key` are float [B, N, Hk, K], `value` [B,
        N, H, V]. `g`, the logarithms of the decay, is [B, N, H] or [B, N, H, K]; `beta`, the update rates, [B, N, H].
        Return the outputs [B, N, H, V] and the state before the draft."""
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
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Replace the chunked scan of Mamba 2; like single steps, it does not limit `dt`. `hidden_states` is float [B,
        N, H, P], `dt`, the step sizes, [B, N, H], `A`, `D` (the skip connection) and `dt_bias` are [H], `B` and `C` [B,
        N, G, S]. Return the outputs [B, N, H, P] and the state before the draft."""
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
        conv, recurrent = dict(states.conv), dict(states.recurrent)
        for number, full in self.full.items():
            conv[number] = window_behind(full, states.conv[number].shape[-1], paths)
        if self.brought is not None:
            moved = self.brought.behind(paths)
            recurrent[0] = (moved.transpose(-1, -2) if self.turned else moved).to(recurrent[0].dtype)
        return LayerStates(conv, recurrent)


def repeat_heads(heads: Tensor, times: int) -> Tensor:
    """Repeat every head of [B, N, H, ...] `times` times, with its copies adjacent."""
    return heads if times == 1 else heads.repeat_interleave(times, 2)


# a mixer's functions -> their stand-ins; the form of a mixer is the first entry that covers all its recurrent calls
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
    """Return the stand-ins of a mixer whose forward calls the functions `names`; None without a closed form."""
    rolled = "update_recurrent_state" in names
    for form in FORMS:
        main = [name for name, stand in form.items() if stand]
        if set(main) <= names and rolled == (form is not _CONV):
            return {name: form[name] for name in main}
    return None


def refuse_single_step(*args: object, **kwargs: object) -> None:
    raise RuntimeError("expected no single step in a pass over a draft, got a step that would overwrite the states")


def stand_ins(form: dict[str, str], run: TreePass) -> dict[str, Callable]:
    return {name: getattr(run, stand) for name, stand in form.items()}


@dataclass(slots=True)
class StepwisePass:
    """The pass of a mixer over a draft, in which every node is a single step after its parent. The tree is read level
    by level, with all rows and siblings in the same call. No states of draft nodes are stored: after acceptance, the
    recorded inputs of the accepted path are stepped again from the committed states."""

    module: nn.Module
    layer: StateLayer
    args: tuple  # of the mixer's call, with [B, N, ...] tensors
    kwargs: dict
    tree: Tree
    alone: bool = False  # whether every node's step is a call of its own, so that its bits depend on no other node
    root: LayerStates | None = None  # the states after every row's root

    @property
    def hidden(self) -> Tensor:
        return self.args[0] if self.args else self.kwargs["hidden_states"]

    def run(self, call: Callable) -> Tensor:
        """Return the mixer's outputs of all nodes, [B, N, H]; `call` is its own forward."""
        hidden = self.hidden
        batch, nodes = hidden.shape[:2]
        parent = self.tree.parent.expand(batch, -1).tolist()
        levels = (self.tree.ancestor.sum(-1) - 1).expand(batch, -1).tolist()
        out, states, place = None, self.layer.committed, {}
        for level in range(max(map(max, levels)) + 1):
            at = [(row, node) for row in range(batch) for node in range(nodes) if levels[row][node] == level]
            rows, picked = (torch.tensor(indices, device=hidden.device) for indices in zip(*at, strict=True))
            came = [place[row, parent[row][node]] if level else row for row, node in at]
            step, states = self._steps(call, states.rows(torch.tensor(came, device=hidden.device)), rows, picked)
            place = {pair: index for index, pair in enumerate(at)}
            self.root = self.root or states
            out = step.new_zeros(batch, nodes, step.shape[-1]) if out is None else out
            out[rows, picked] = step[:, 0]
        return out

    def _steps(self, call: Callable, states: LayerStates, rows: Tensor, nodes: Tensor) -> tuple[Tensor, LayerStates]:
        if not self.alone:
            return self._step(call, states, rows, nodes)
        index = torch.arange(len(rows), device=rows.device)
        steps = [self._step(call, states.rows(i), rows[i], nodes[i]) for i in index.split(1)]
        return torch.cat([out for out, _ in steps]), LayerStates.joined([behind for _, behind in steps])

    def _step(self, call: Callable, states: LayerStates, rows: Tensor, nodes: Tensor) -> tuple[Tensor, LayerStates]:
        size = self.hidden.shape[:2]

        def own(value: object) -> object:
            whole = isinstance(value, Tensor) and value.shape[:2] == size
            return value[rows, nodes][:, None] if whole else value

        with self.layer.serving(states, states) as behind:  # a step may write into the states: they are copies
            out = call(*map(own, self.args), **{name: own(value) for name, value in self.kwargs.items()})
        return (out[0] if isinstance(out, tuple) else out), behind

    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
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
