"""The timed cases: a piece of a round in the core, the straightforward torch code for it, and the bytes it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import BlockVerification, Rule, TargetMatch, Traversal
from mmspec.core.round.sampling import truncated_scores
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.imagegen.rules.lantern import Lantern
from mmspec.kernels.draft_tree import move_slots
from mmspec.kernels.tree_attention import tree_attention


@dataclass(frozen=True, slots=True)
class KernelCase:
    name: str
    shape: str
    ours: Callable[[], object]
    plain: Callable[[], object]  # torch code on the same inputs
    moved: int  # the bytes that our kernels read and write
    floor: int  # the bytes of every input and output once, which any code has to move


def cases(device: torch.device, tiny: bool) -> list[Callable[[], KernelCase]]:
    """Return the builders of all cases, in the order of the table; each creates its inputs when called. Small sizes
    (`tiny`) are for the interpreter and for tests."""
    text = (3, 127) if tiny else (32, 128_256)
    image = (3, 64) if tiny else (32, 16_384)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bushy = static_tree([0, 0, 0, 1] if tiny else [0, *([0] * 4), *[i for i in range(1, 5) for _ in range(6)], 5, 5, 5])
    line = chain(text[0] - 1, device)
    return [
        # residual masses read both distributions once per draft token; shares of siblings read one distribution more
        lambda: _round("text chain, block", BlockVerification(), line, text[1], device, dtype, 2),
        lambda: _round("text tree, traversal", Traversal(), _to(bushy, device), text[1], device, dtype, 3),
        lambda: _round("text chain, greedy", TargetMatch(), line, text[1], device, dtype, 0),
        lambda: _round(
            "image chain, LANTERN",
            _lantern(image[1], device),
            chain(image[0] - 1, device),
            image[1],
            device,
            torch.float32,
            4,  # both distributions are written out: read once more and written
        ),
        lambda: _cut(*((2, 127) if tiny else (64, 131_072)), device),
        lambda: _commit(*((2, 2, 24, 8) if tiny else (32, 8, 2048, 128)), device, dtype),
        lambda: _attention(*((4, 40, 16) if tiny else (64, 2048, 128)), device, dtype),
    ]


def _to(tree: Tree, device: torch.device) -> Tree:
    return static_tree(tree.parent[0].tolist(), device)


def _lantern(size: int, device: torch.device) -> Rule:
    near = min(1000, size - 1)
    table = (torch.arange(size)[:, None] + torch.arange(1, near + 1)) % size
    return Lantern(table.to(device), near, delta=0.1)


def _round(
    name: str, rule: Rule, tree: Tree, size: int, device: torch.device, dtype: torch.dtype, reads: int
) -> KernelCase:
    """Return the case of a round over `size` tokens, from the target's logits in `dtype` to the token after the
    accepted path. A draft token reads `reads` rows of vocabulary size beside its own two; 0 for a greedy request, which
    has no distribution of the drafter's."""
    drawn = tree.nodes - 1 if reads else 0
    generator = torch.Generator().manual_seed(0)
    scores = (2 * torch.randn(1, tree.nodes, size, generator=generator)).to(device, dtype)
    record = scores + torch.randn(1, tree.nodes, size, generator=generator).to(device, dtype)
    value = record.float().softmax(-1)[0, tree.parent[0]].multinomial(1).T.contiguous()
    law = Law("without_replacement", torch.arange(tree.nodes, device=device), record) if drawn else Law("deterministic")
    draft, evidence, keys = Draft(value, tree, law), Evidence(scores, greedy=not drawn), Keys.of(0, 1, device)
    token, parent = value[0], tree.parent[0]

    def ours() -> Tensor:
        weights = rule.weigh(evidence, draft)
        uniform = keys.uniform(Purpose.ACCEPT, tree.nodes)
        verdict = rule.select(weights, uniform, draft)
        return rule.resample(evidence, draft, weights, verdict, keys).correction

    def plain() -> Tensor:
        p = scores.float().softmax(-1)
        if not drawn:
            return p.argmax(-1)
        q = record.float().softmax(-1)
        ratio = p[0, parent, token] / q[0, parent, token]
        passed = (torch.rand(tree.nodes, device=device) < ratio).cumprod(0).sum()
        rest = (p - q).clamp_min(0)
        return torch.multinomial(rest[0] / rest[0].sum(-1, keepdim=True).clamp_min(1e-30), 1)[
            passed.clamp_max(tree.nodes - 1)
        ]

    wide = size * scores.element_size()
    floor = (tree.nodes + drawn) * wide
    # statistics read everything once, and the race reads a row of each distribution
    moved = floor + reads * drawn * wide + (2 * wide if drawn else 0)
    return KernelCase(name, f"1 x {tree.nodes} x {size}", ours, plain, moved, floor)


def _cut(batch: int, size: int, device: torch.device) -> KernelCase:
    scores = 2 * torch.randn(batch, size, generator=torch.Generator().manual_seed(0)).to(device)

    def plain() -> Tensor:
        ordered, place = scores.sort(-1, descending=True)
        law = ordered.softmax(-1)
        cut = law.cumsum(-1) - law > 0.9
        return scores.masked_fill(cut.scatter(-1, place, cut), -torch.inf)

    row = batch * size * 4
    # three passes over the row; then the masked copy
    return KernelCase(
        "exact top-p 0.9", f"{batch} x {size}", lambda: truncated_scores(scores, 0, 0.9), plain, 5 * row, 2 * row
    )


def _commit(layers: int, heads: int, slots: int, size: int, device: torch.device, dtype: torch.dtype) -> KernelCase:
    keys, values = (torch.zeros(layers, 1, heads, slots, size, device=device, dtype=dtype) for _ in range(2))
    slots_to_move = torch.arange(0, 16, 2, device=device)
    length = torch.tensor([slots - 20], device=device)

    def plain() -> None:
        target = length + torch.arange(len(slots_to_move), device=device)
        for pool in (*keys, *values):
            pool[:, :, target] = pool[:, :, length + slots_to_move]

    moved = 2 * 2 * (len(slots_to_move) - 1) * layers * heads * size * keys.element_size()
    shape = f"{len(slots_to_move)} of 16 x {layers} layers"
    return KernelCase(
        "commit", shape, lambda: move_slots(keys, values, length, slots_to_move[None]), plain, moved, moved
    )


def _attention(nodes: int, width: int, size: int, device: torch.device, dtype: torch.dtype) -> KernelCase:
    tree = static_tree([max((i - 1) // 2, 0) for i in range(nodes)], device)
    query = torch.randn(1, 8, nodes, size, device=device).to(dtype)
    keys, values = (torch.randn(1, 2, width + nodes, size, device=device).to(dtype) for _ in range(2))
    length = torch.full((1,), width, device=device)

    def plain() -> Tensor:
        seen = torch.cat((torch.ones(nodes, width, dtype=torch.bool, device=device), tree.ancestor[0]), 1)
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, seen, enable_gqa=True)

    floor = (2 * keys.numel() + 2 * query.numel()) * keys.element_size()
    ours = lambda: tree_attention(query, keys, values, length, width, tree.ancestor)  # noqa: E731
    return KernelCase("tree attention", f"{nodes} on {width}", ours, plain, floor, floor)
