"""SGLang's tree sampling: its kernel, and what the kernel does in array terms."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.certify.cases import Shape

_PICKED = (Shape((0, 1), "deterministic"), Shape((0, 0, 1, 1), "deterministic"))


class TargetOnly:
    """The tree step of SGLang in array terms: drafts are taken as picked, their law is not read.

    At a token one coin is thrown for all of its children: they are neighbouring intervals of the target's law, as long as
    their probabilities, and the child on whose interval the coin falls is accepted. Where none is, what follows is drawn from
    p without the children. The two thresholds of the kernel relax it: `accumulated` below 1 makes all intervals longer by
    its inverse, and a child above `single` is accepted whatever the coin. At 1 and 1 it is exact for any draft without equal
    siblings.

    strict: a coin of exactly 0 accepts nothing that has no probability, as in the kernel since it was mended; before, `<=`
    let such a child pass.
    """

    shapes = _PICKED

    def __init__(self, single: float = 1.0, accumulated: float = 1.0, strict: bool = True):
        self.single, self.accumulated, self.strict = single, accumulated, strict
        self.__name__ = f"sglang tree, thresholds {single:g} and {accumulated:g}"

    def __call__(self, tokens: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(tokens))
        node, depth = torch.zeros(len(tokens), dtype=torch.long), torch.zeros(len(tokens), dtype=torch.long)
        law = p[:, 0].clone()
        walking = torch.ones(len(tokens), dtype=torch.bool)
        for _ in range(len(parents)):  # a walk is at most as long as there are tokens
            coin = uniforms[rows, depth]
            reached, passed = torch.zeros_like(coin), torch.full_like(node, -1)
            for child, parent in enumerate(parents.tolist(), start=1):
                here = walking & (node == parent)
                mass = p[rows, parent, tokens[:, child - 1]]
                reached = torch.where(here, reached + mass, reached)
                passes = here & (passed < 0) & self._passes(coin, reached, mass)
                passed = torch.where(passes, child, passed)
                tried = here & (passed < 0)
                law[tried] = law[tried].scatter(1, tokens[tried, child - 1, None], 0.0)
            walking = walking & (passed >= 0)
            node, depth = torch.where(walking, passed, node), depth + walking.long()
            law[walking] = p[rows[walking], node[walking]]
        return node, _inverse(law, uniforms[:, -1])

    def _passes(self, coin: Tensor, reached: Tensor, mass: Tensor) -> Tensor:
        end = reached / self.accumulated
        inside = (coin < end) & (mass > 0) if self.strict else coin <= end
        return inside | (mass >= self.single)


def _inverse(law: Tensor, uniform: Tensor) -> Tensor:
    """One index a row by inversion of what is left of a law."""
    total = law.cumsum(-1)
    last = (total < total[:, -1:]).sum(-1)
    return (total <= uniform[:, None] * total[:, -1:]).sum(-1).minimum(last)


sglang = TargetOnly()
"""What SGLang's tree kernel does, in array terms and with thresholds of 1."""


def sglang_kernel(tokens: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """`sgl_kernel.tree_speculative_sampling_target_only` on the GPU, with thresholds of 1, all rows as one batch.

    It computes in float32. A row is the committed token and its drafts; children are linked as first child and next sibling.
    """
    from sgl_kernel import tree_speculative_sampling_target_only as sample

    rows, nodes, size = p.shape
    device = torch.device("cuda")
    child, sibling = _links(parents.tolist())
    out = {
        "predicts": torch.full((rows * nodes,), -1, dtype=torch.int32, device=device),
        "accept_index": torch.full((rows, nodes), -1, dtype=torch.int32, device=device),
        "accept_token_num": torch.zeros(rows, dtype=torch.int32, device=device),
    }
    place = torch.arange(rows * nodes, device=device).view(rows, nodes)
    laws = p.float().to(device).contiguous()
    sample(
        **out,
        candidates=torch.cat((torch.zeros(rows, 1, dtype=torch.long), tokens), 1).to(device),
        retrive_index=place,
        retrive_next_token=child.expand(rows, -1).contiguous().to(device),
        retrive_next_sibling=sibling.expand(rows, -1).contiguous().to(device),
        uniform_samples=uniforms[:, :nodes].float().to(device).contiguous(),
        uniform_samples_for_final_sampling=uniforms[:, -1].float().to(device).contiguous(),
        target_probs=laws,
        draft_probs=torch.zeros_like(laws),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    count = out["accept_token_num"].long()
    place = out["accept_index"].long().gather(1, count[:, None])[:, 0]
    return (place % nodes).cpu(), out["predicts"].long()[place].cpu()


sglang_kernel.shapes = _PICKED


def _links(parents: list[int]) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every node int64 [1, N + 1], -1 where there is none."""
    nodes = len(parents) + 1
    child, sibling = torch.full((1, nodes), -1), torch.full((1, nodes), -1)
    last: dict[int, int] = {}
    for node, parent in enumerate(parents, start=1):
        if parent in last:
            sibling[0, last[parent]] = node
        else:
            child[0, parent] = node
        last[parent] = node
    return child, sibling
