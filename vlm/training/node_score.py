"""Training of C2T's network on the nodes of verified drafts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.heap import BestFirst
from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import DraftState
from mmspec.vlm.api import start
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.drafters.node_score import NodeScore, NodeScoreConfig


@dataclass(slots=True)
class VerifiedNodes:
    features: Tensor  # float32 [n, 3], see `NodeFilter.keeps`
    accepted: Tensor  # bool [n], whether the rule accepted them

    @classmethod
    def joined(cls, parts: Iterable[VerifiedNodes]) -> VerifiedNodes:
        parts = list(parts)
        return cls(torch.cat([part.features for part in parts]), torch.cat([part.accepted for part in parts]))


class NodeLog:
    """A filter that keeps every node, and the state of a request that labels the nodes of a round by the verdicts."""

    def __init__(self) -> None:
        self.state: DraftState | None = None
        self.nodes: list[VerifiedNodes] = []
        self.levels: list[Tensor] = []
        self.chosen: Tensor | None = None
        self.live: list[bool] = []

    def keeps(self, features: Tensor, drawn: bool) -> Tensor:
        self.levels.append(features)
        return torch.ones_like(features[..., 0], dtype=torch.bool)

    def chose(self, index: Tensor) -> None:
        pool = torch.cat(self.levels, 1)
        self.chosen = pool.gather(1, index[..., None].expand(-1, -1, pool.shape[-1]))

    @property
    def passes(self) -> int:
        return self.state.passes

    def propose(self, target: object, keys: Keys) -> Draft:
        self.levels, self.chosen, self.live = [], None, list(target.live)
        return self.state.propose(target, keys)

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if self.chosen is not None:
            real = torch.tensor(self.live)[:, None] & (self.chosen[..., 0] > -torch.inf)
            real &= True if draft.valid is None else draft.valid[:, 1:]
            accepted = torch.zeros_like(draft.value, dtype=torch.bool).scatter(1, verdict.path, True)[:, 1:]
            self.nodes.append(VerifiedNodes(self.chosen[real], accepted[real]))
        self.state.observe(target, draft, evidence, verdict)


def verified_nodes_of(
    model: nn.Module, drafter: ShapedDrafter, requests: Iterable[dict[str, Any]], shape: BestFirst | None = None
) -> VerifiedNodes:
    """Decode requests, arguments of `generate`, and return the nodes of their drafts, all greedy or all sampled. The
    last round of a request, which no drafter observes, is left out. Later trees should have this `shape` too; None is
    16 nodes on 7 levels."""
    log = NodeLog()
    drafter = drafter.with_shape(replace(shape or BestFirst(16, 7, 3), score=log))
    for request in requests:
        run = start(model, drafter=drafter, **request)
        if run.step():
            log.state, run.state = run.state, log
            run.run()
    return VerifiedNodes.joined(log.nodes)


def node_loss(logits: Tensor, accepted: Tensor) -> Tensor:
    """Return the cross-entropy of `logits`, float32 [n], in which accepted and rejected nodes have the same total
    weight."""
    each = F.binary_cross_entropy_with_logits(logits, accepted.float(), reduction="none")
    return (each[accepted].mean() + each[~accepted].mean()) / 2


def train_node_score(
    picked: VerifiedNodes, drawn: VerifiedNodes, hidden_size: int = 8, steps: int = 400, lr: float = 0.02, seed: int = 0
) -> NodeScore:
    """Train the two networks of `hidden_size` hidden units on all nodes of greedy (`picked`) and of sampled (`drawn`)
    requests at once, by Adam."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = NodeScore(NodeScoreConfig(hidden_size))
    for name, nodes in {"picked": picked, "drawn": drawn}.items():
        if bool(nodes.accepted.all()) or not bool(nodes.accepted.any()):
            raise ValueError(
                f"{name}: expected accepted and rejected nodes, got {len(nodes.accepted)} of one kind; decode "
                "more requests"
            )
        getattr(network, f"{name}_mean").copy_(nodes.features.mean(0))
        getattr(network, f"{name}_scale").copy_(nodes.features.std(0).clamp(min=1e-3))
        optimizer = torch.optim.Adam(getattr(network, name).parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            node_loss(network(nodes.features, name == "drawn"), nodes.accepted).backward()
            optimizer.step()
    return network.eval().requires_grad_(False)
