"""The target pass over a draft: its rows (nodes, probes, padding), and the context managers around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from mmspec.core.layers.strict import over_draft
from mmspec.core.length.pass_costs import pad_nodes
from mmspec.core.round.draft import Draft, Probes, expand_tree
from mmspec.core.round.tree import Tree
from mmspec.vlm.mixers import tree_passes


@dataclass(slots=True)
class PassRows:
    """The rows of a target pass: the N nodes of a draft, then its P probes, then padding, W in all."""

    value: Tensor  # int64 [B, W], token ids; probes and padding repeat the root
    depth: Tensor  # int64 [B, W]
    ancestor: Tensor  # bool [R, W, W], the rows that a row sees
    nodes: int  # N
    probes: Probes | None

    @classmethod
    def of(cls, draft: Draft, width: int) -> Self:
        tree, value, nodes = draft.pass_tree, draft.value, draft.tree.nodes
        depth, ancestor = expand_tree(tree.depth, draft.batch), tree.ancestor
        if tree.nodes > nodes:
            value = torch.cat([value, value[:, :1].expand(-1, tree.nodes - nodes)], 1)
        if width > tree.nodes:
            value, depth, ancestor = pad_nodes(value, depth, ancestor, width)
        return cls(value, depth, ancestor, nodes, draft.probes)

    def inputs(self, embed: nn.Module) -> dict[str, Tensor]:
        if self.probes is None:
            return {"input_ids": self.value}
        embeds, last = embed(self.value).clone(), self.nodes + self.probes.embeds.shape[1]
        embeds[:, self.nodes : last] = self.probes.embeds.to(embeds)
        return {"inputs_embeds": embeds}


Surrounding = Callable[[Any, Tree], AbstractContextManager]


def surroundings_of(target: Any) -> tuple[Surrounding, ...]:
    """Return functions of the context managers around each pass of a `TextTarget` over a tree, since bound methods
    would keep the target and its cache alive."""
    makers = ((target.rope, _turned), (target.mixers, _along_tree), (target.strict, _in_single_bits))
    return tuple(make for needed, make in makers if needed)


def _turned(target: Any, tree: Tree) -> AbstractContextManager:
    """Give passes inside the rotary embeddings of plain decoding, where all rows step together."""
    step = max(target.emitted) + tree.max_depth
    if max(target._longest, target._last + 1 + step) < target.rope.switch:
        return target.rope.at(target._longest)
    emitted = torch.tensor(target.emitted, device=target.device)[:, None]
    depth = expand_tree(tree.depth, target.batch)
    return target.rope.at((target._last + 1 + emitted + depth).clamp_min(target._longest))


def _along_tree(target: Any, tree: Tree) -> AbstractContextManager:
    return tree_passes(target.mixers, target.cache, tree)


def _in_single_bits(target: Any, tree: Tree) -> AbstractContextManager:
    return over_draft(target.cache, tree, target.batch)
