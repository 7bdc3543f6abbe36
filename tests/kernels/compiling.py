"""Compiles every kernel for a GPU that is not there, down to machine code, and says which: run as a program of its own.

The wrappers run on tensors of the CPU as they would on a GPU's; Triton compiles what they launch and launches nothing.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from mmspec.core.round.rules.siblings import rejection_order
from mmspec.core.round.tree import dynamic_tree, static_tree
from mmspec.kernels import dispatch
from mmspec.kernels.block_verification import block_thresholds, token_thresholds
from mmspec.kernels.counter import uniforms
from mmspec.kernels.draft_tree import move_slots, select_path, take_nodes
from mmspec.kernels.gpu import tree_attention as _read_before_the_switch  # noqa: F401
from mmspec.kernels.law import best_match, law_of, law_rows, mass_at, row_stats
from mmspec.kernels.law import dense as as_masses
from mmspec.kernels.law_pair import law_pair
from mmspec.kernels.log_law import Residual
from mmspec.kernels.neighbour_pooling import borrowed_mass, borrowing_thresholds, pooled_mass, ranked_window
from mmspec.kernels.reflection_coupling import log_ratio, reflect_point
from mmspec.kernels.residual_sampling import residual_sample
from mmspec.kernels.sampling import truncated_scores, truncation_floor
from mmspec.kernels.sequential_rejection import reject_tree
from mmspec.kernels.sibling_thresholds import kseq_discount, match_thresholds
from mmspec.kernels.tree_attention import tree_attention


class Absent:
    """A driver of a GPU that compiles for it and knows nothing else."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def everything(size: int, dtype: torch.dtype) -> None:
    """One call of every wrapper, B = 2, N = 4, V = size."""
    batch, nodes = 2, 4
    scores = torch.zeros(batch, nodes, size, dtype=dtype)
    one, index = torch.ones(batch, nodes), torch.arange(nodes)
    flags, token = torch.ones(batch, nodes, dtype=torch.bool), torch.zeros(batch, nodes, dtype=torch.long)
    square, node, seeds = flags[:1, None].repeat(1, nodes, 1), token[:, 0], torch.zeros(batch, dtype=torch.long)
    row_stats(scores, one[:, 0], one)
    truncation_floor(scores, min(3, size - 1), 0.9, one[:, 0])
    truncation_floor(scores, min(3, size - 1), 0.9, None, "top_p_first")
    truncated_scores(scores, 0, 0.9)
    p, dense = law_rows(scores), law_of(scores)
    for law in (p, p.index_select(1, index), dense):
        mass_at(law, index, token)
        as_masses(law)
        kseq_discount(law, law, token)
        for per_row, post in ((False, True), (True, False)):
            tree = static_tree([0, 0, 0, 1])
            tree = dynamic_tree(tree.parent.expand(batch, -1).clone(), 2, 1) if per_row else tree
            reject_tree(
                law, law, index, one, one, token, rejection_order(tree, post), flags if post else None, post, False
            )
    for law in (p, p.index_select(1, index), dense):
        block_thresholds(one, one, law, law, index, flags)
    best_match(scores, token, token[:1], flags)
    law_pair(scores, scores, token[:1], index, token)
    match_thresholds(one, token, square, flags)
    for descend in (True, False):
        select_path(one, one.double(), token[:1], square, token[:1], token[:1], flags, descend)
    for stream in (1, 2**40, seeds[0]):
        uniforms(seeds, stream, 100)
        residual_sample(Residual("scaled", p, p, index, one, one), node, seeds, stream)
    residual_sample(Residual("scaled", p, p, index, one, one, token, flags), node, seeds, 3)
    residual_sample(Residual("kseq", dense, p, index, one, one), node, seeds, 3)
    residual_sample(Residual("without", p, token=token, remove=flags), node, seeds, 3)
    value = torch.zeros(batch, 3, 16)
    for ratio in (log_ratio, reflect_point):
        ratio(value, value, value, value[..., :1])
    table, member = torch.zeros(size, min(size, 1000), dtype=torch.long), token[..., None].repeat(1, 1, 5)
    borrowed_mass(dense, token, table, one)
    token_thresholds(one, one, flags)
    for law in (None, p, dense):
        borrowing_thresholds(p, law, index, token, one, table, (0.1, 2.0), flags)
    ranked_window(dense, token, 7, 6)
    pooled_mass(dense, token, member, member == 0)
    pool = torch.zeros(2, batch, 2, 40, 64, dtype=dtype)
    move_slots(pool, pool, node, token)
    take_nodes(scores, token)
    pool = pool.to(torch.float32) if dtype == torch.float64 else pool
    query = pool[0, :, :, :nodes].repeat(1, 2, 1, 1)
    tree_attention(query, pool[0], pool[1], node, 20, square, flags)


def main() -> None:
    made: Counter[str] = Counter()
    run = triton.runtime.jit.JITFunction.run

    def compile_only(kernel, *arguments, grid, warmup, **constants):
        made[kernel.fn.__name__] += run(kernel, *arguments, grid=grid, warmup=True, **constants) is not None

    triton.runtime.jit.JITFunction.run = compile_only
    dispatch.INTERPRETED = True  # the wrappers take kernels on a CPU; Triton itself read the environment before
    driver.set_active(Absent(int(sys.argv[1])))
    everything(128_256, torch.bfloat16)
    everything(96, torch.float64)  # branches of the dtype
    print(" ".join(sorted(made)))


if __name__ == "__main__":
    main()
