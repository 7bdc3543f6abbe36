"""What wrappers refuse, and what runs where Triton is missing."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from mmspec.kernels import dispatch
from mmspec.kernels.block_verification import block_thresholds
from mmspec.kernels.counter import uniforms
from mmspec.kernels.draft_tree import move_slots, select_path, take_nodes
from mmspec.kernels.law import best_match, law_rows, mass_at, residual_mass, row_stats
from mmspec.kernels.log_law import Residual
from mmspec.kernels.neighbour_pooling import borrowed_mass, ranked_window
from mmspec.kernels.reflection_coupling import log_ratio
from mmspec.kernels.residual_sampling import residual_sample
from mmspec.kernels.sampling import truncation_floor
from mmspec.kernels.sequential_rejection import mass_left, reject_siblings
from mmspec.kernels.sibling_thresholds import kseq_discount, match_thresholds
from mmspec.kernels.tree_attention import tree_attention

B, N, V = 2, 3, 8
LAW = torch.full((B, N, V), 1 / V)
ONE, TOKEN = torch.ones(B, N), torch.zeros(B, N, dtype=torch.long)
FLAG = torch.ones(B, N, dtype=torch.bool)
SQUARE = torch.ones(1, N, N, dtype=torch.bool)
POOL = torch.zeros(2, B, 2, 9, 4)
STRIDED = torch.zeros(B, V, N).transpose(1, 2)
RESIDUAL = Residual("scaled", LAW, LAW, TOKEN[0], ONE, ONE)

REFUSED = {
    "scores of integers": (lambda: row_stats(TOKEN[..., None]), "scores: expected .*float32.*, got int64"),
    "scores of two axes": (lambda: law_rows(ONE), r"scores: expected shape \[\*, \*, \*\], got \[2, 3\]"),
    "scores across": (
        lambda: row_stats(STRIDED),
        r"scores: expected a last axis of stride 1, got strides \(24, 1, 3\)",
    ),
    "integers to rank": (
        lambda: best_match(TOKEN[..., None], TOKEN, TOKEN[:1], None),
        "scores: expected .*, got int64",
    ),
    "temperatures of another batch": (
        lambda: row_stats(LAW, torch.ones(3)),
        r"inverse: expected shape \[2\], got \[3\]",
    ),
    "a floor of another shape": (
        lambda: row_stats(LAW, None, ONE[:, :1]),
        r"floor: expected shape \[2, 3\], got \[2, 1\]",
    ),
    "a negative k": (lambda: truncation_floor(LAW, -1), "expected top_k >= 0 and top_p in .*, got -1"),
    "tokens of floats": (lambda: mass_at(LAW, TOKEN[0], ONE), "token: expected int64, got float32"),
    "rows of a third batch": (
        lambda: mass_at(LAW, torch.zeros(3, N).long(), TOKEN),
        r"row: expected a first axis of 1 or 2, got \[3, 3\]",
    ),
    "half laws": (lambda: residual_mass(LAW.half(), LAW, ONE, ONE), "p: expected float32 or float64, got float16"),
    "laws across": (lambda: residual_mass(STRIDED, LAW, ONE, ONE), "p: expected a last axis of stride 1"),
    "another vocabulary": (
        lambda: residual_mass(LAW, LAW[..., :5].clone(), ONE, ONE),
        "q: expected laws of the batch and",
    ),
    "scalars of another shape": (
        lambda: residual_mass(LAW, LAW, ONE[:, :2], ONE),
        r"alpha: expected shape \[2, 3\], got",
    ),
    "a node too few": (
        lambda: block_thresholds(ONE[:, 1:], ONE, LAW, LAW, TOKEN[0], None),
        r"child_p: expected shape \[2, 3\], got",
    ),
    "flags of integers": (
        lambda: block_thresholds(ONE, ONE, LAW, LAW, TOKEN[0], TOKEN),
        "live: expected bool, got int64",
    ),
    "uniforms of another shape": (
        lambda: select_path(ONE, ONE[:, :2], TOKEN[:1], SQUARE, TOKEN[:1], TOKEN[:1], None, True),
        r"uniform: expected shape \[2, 3\], got \[2, 2\]",
    ),
    "counts of floats": (lambda: kseq_discount(LAW, LAW, ONE), "count: expected int64, got float32"),
    "masses of integers": (lambda: match_thresholds(TOKEN, TOKEN, SQUARE, None), "mass: expected float32 or float64"),
    "more children than before": (
        lambda: mass_left(LAW, [TOKEN[:, :1], TOKEN[:, :2]], None),
        r"token\[1\]: expected at most 1 columns .*, got 2",
    ),
    "three scalars a child": (
        lambda: reject_siblings(LAW, LAW, ONE, [torch.ones(3, B, N)], None),
        r"child\[0\]: expected shape \[4, 2, \*\], got",
    ),
    "seeds of floats": (lambda: uniforms(ONE[:, 0], 1, 4), "seeds: expected int64, got float32"),
    "a node a row too few": (
        lambda: residual_sample(RESIDUAL, TOKEN[:1, 0], TOKEN[:, 0], 1),
        r"node: expected shape \[2\], got \[1\]",
    ),
    "uniforms in single": (
        lambda: residual_sample(RESIDUAL, TOKEN[:, 0], TOKEN[:, 0], 1, torch.rand(B, V)),
        "uniform: expected float64, got",
    ),
    "vectors of two widths": (
        lambda: log_ratio(LAW, LAW[..., :3], LAW, LAW[..., :1]),
        r"draft_mean: expected .*\[..., 8\], got",
    ),
    "a source of another batch": (
        lambda: move_slots(POOL, POOL, TOKEN[:, 0], TOKEN[:1]),
        r"source: expected shape \[2, \*\], got \[1, 3\]",
    ),
    "values of another dtype": (
        lambda: move_slots(POOL, POOL.half(), TOKEN[:, 0], TOKEN),
        "values: expected float32, got float16",
    ),
    "nodes of another batch": (lambda: take_nodes(LAW, TOKEN[:1]), r"node: expected shape \[2, \*\], got \[1, 3\]"),
    "a budget of another shape": (
        lambda: borrowed_mass(LAW, TOKEN, TOKEN, ONE[:, :1]),
        r"budget: expected shape \[2, 3\], got \[2, 1\]",
    ),
    "ranks across": (lambda: ranked_window(STRIDED, TOKEN, 1, 1), "p: expected a last axis of stride 1"),
    "heads that do not divide": (
        lambda: tree_attention(torch.zeros(B, 3, N, 4), POOL[0], POOL[1], TOKEN[:, 0], 4, SQUARE),
        "keys: expected heads that divide 3",
    ),
    "a width beyond the slots": (
        lambda: tree_attention(POOL[0, :, :, :N], POOL[0], POOL[1], TOKEN[:, 0], 7, SQUARE),
        "width: expected 0 to 6 .*, got 7",
    ),
    "queries in double": (
        lambda: tree_attention(POOL[0, :, :, :N].double(), POOL[0], POOL[1], TOKEN[:, 0], 4, SQUARE),
        "query: expected bfloat16",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_invalid_call_reports_one_error(what: str) -> None:
    call, said = REFUSED[what]
    with pytest.raises(ValueError, match=said):
        call()


def test_a_missing_triton_runs_the_reference_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)  # as a GPU would: kernels are wanted
    dispatch.has_triton.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            law = law_rows(LAW.log())
            best, _ = best_match(LAW, TOKEN, TOKEN[:1], None)
        assert torch.equal(law, LAW.log().softmax(-1)) and torch.equal(best, TOKEN)
        assert [str(one.message) for one in said if "expected Triton" in str(one.message)] == [str(said[0].message)]
    finally:
        dispatch.has_triton.cache_clear()
