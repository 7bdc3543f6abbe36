"""Small codebooks, drafts of every kind, and relaxed rules with the setting that makes each one exact."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules import Rule
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.imagegen import GSD, CoolSD, Lantern, LanternPlus, RunJoint
from mmspec.imagegen.rules.lantern import nearest_codes
from tests.core.round.rules.drafting import drawn

WITHOUT = "without_replacement"
CHAIN, TREE = chain(6), static_tree([0, 0, 0, 0, 1, 1, 2, 4, 4])


def codebook(codes: int, seed: int = 0) -> Tensor:
    return torch.randn(codes, 3, generator=torch.Generator().manual_seed(seed))


def table(codes: int) -> Tensor:
    return nearest_codes(codebook(codes), codes - 1)


def exact_settings(codes: int) -> dict[str, Rule]:
    near = table(codes)
    return {
        "lantern, delta 0": Lantern(near, delta=0.0),
        "lantern++, factor 1": LanternPlus(near, k=codes, factor=1.0),
        "gsd, group of 1": GSD(group=1),
        "gsd, nothing close": GSD(group=9, distance=1e-9, table=codebook(codes)),
        "coolsd, all factors 1": CoolSD(delta=1.0, decay=0.0, mu=0.0),
        "coolsd, delta 1": CoolSD(delta=1.0),
        "coolsd, one factor for all": CoolSD(delta=1.0, decay=0.0),
        "runjoint, runs of 1": RunJoint(longest=1),
    }


def relaxed_settings(codes: int) -> dict[str, Rule]:
    near = table(codes)
    return {
        "lantern": Lantern(near, delta=0.3),
        "lantern++": LanternPlus(near, k=codes, factor=2.0),
        "gsd": GSD(group=3, delta_p=1.0),
        "coolsd": CoolSD(delta=1.5),
        "runjoint": RunJoint(),
    }


def scores(rows: int, tree: Tree, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Log-weights float32 [B, N, V] of the target and the drafter, both with cut values."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, tree.nodes, size, generator=generator)
    q = p + torch.randn(p.shape, generator=generator)
    for law in (p, q):
        law.masked_fill_(law < law.topk(size * 3 // 4).values[..., -1:], -torch.inf)
    return p, q


def case(tree: Tree, how: str, rows: int = 64, size: int = 40, seed: int = 0) -> tuple[Draft, Evidence]:
    p, q = scores(rows, tree, size, seed)
    return drawn(tree, p, None if how == "deterministic" else q, how, seed)
