"""A drafted query's attention has the bits of a single step's, in chains and trees, in windows, in batches of ragged rows."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mmspec.core.layers import strict_ops as module
from mmspec.core.layers.strict_ops import SLOTS, attend_draft, attend_prompt, leaf_paths, row_groups
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.kernels.draft_tree import tree_bias

DTYPES = (torch.float32, torch.bfloat16)
TREES = {
    "root": chain(0),
    "chain": chain(7),
    "long chain": chain(11),
    "tree": static_tree((0, 0, 0, 1, 1, 2, 5, 5, 4, 8, 9, 10, 11, 12, 13)),
}
HEADS, SIZE = 3, 32


@dataclass(frozen=True)
class Case:
    """Rows of a cache: `starts` slots of padding, committed up to `lengths`, and a draft behind them."""

    tree: Tree
    starts: tuple[int, ...] = (0,)
    lengths: tuple[int, ...] = (61,)
    dtype: torch.dtype = torch.float32
    window: int | None = None
    groups: int = 1

    @property
    def pool(self) -> SimpleNamespace:
        width = max(self.lengths)
        hidden = torch.arange(width) < torch.tensor(self.starts)[:, None] if any(self.starts) else None
        return SimpleNamespace(
            width=width, lengths=list(self.lengths), uniform=min(self.lengths) == width, hidden=hidden
        )

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, N, D], keys and values [B, H, W + N, D]; slots beyond a row's own hold what must not show."""
        rng, rows, nodes = torch.Generator().manual_seed(3), len(self.lengths), self.tree.nodes
        q, k, v = (
            torch.randn(rows, heads, count, SIZE, generator=rng).to(self.dtype)
            for heads, count in (
                (HEADS * self.groups, nodes),
                (HEADS, max(self.lengths) + nodes),
                (HEADS, max(self.lengths) + nodes),
            )
        )
        return q, k, v

    def bias(self) -> Tensor:
        pool = self.pool
        full = tree_bias(
            self.tree.ancestor, torch.tensor(self.lengths), pool.width, pool.uniform, pool.hidden, self.dtype
        )
        if self.window is None:
            return full
        length = torch.tensor(self.lengths)[:, None]
        token = torch.arange(full.shape[-1]).repeat(len(self.lengths), 1)
        query = length + self.tree.depth
        token.scatter_(1, length + torch.arange(self.tree.nodes), query)
        outside = query[:, :, None] - token[:, None] >= self.window
        return full.masked_fill(outside[:, None], torch.finfo(self.dtype).min)


def drafted(case: Case) -> Tensor:
    query, key, value = case.tensors()
    split = row_groups(case.pool, case.tree, len(case.lengths))
    return attend_draft(
        split, case.tree.nodes, key.shape[2], F.scaled_dot_product_attention, query, key, value, case.bias()
    )


def single(case: Case, row: int, node: int) -> Tensor:
    """A step of a row that has committed the path to the node, alone and without padding."""
    query, key, value = case.tensors()
    nodes = case.tree.path[0, node, : int(case.tree.depth[0, node]) + 1].tolist()
    slots = [*range(case.starts[row], case.lengths[row]), *(case.lengths[row] + n for n in nodes)]
    key, value = key[row : row + 1, :, slots], value[row : row + 1, :, slots]
    step = Case(chain(0), lengths=(len(slots) - 1,), dtype=case.dtype, window=case.window)
    split, query = row_groups(step.pool, step.tree, 1), query[row : row + 1, :, node : node + 1]
    return attend_draft(split, 1, len(slots), F.scaled_dot_product_attention, query, key, value, step.bias())[0, :, 0]


def apart(case: Case) -> int:
    out = drafted(case)
    return sum(
        not torch.equal(out[row, :, node], single(case, row, node))
        for row in range(len(case.lengths))
        for node in range(case.tree.nodes)
    )


RAGGED = dict(starts=(0, 5, 21), lengths=(60, 62, 51))
LONG = dict(starts=(0, 5, 21), lengths=(560, 562, 551))  # where keys come in several blocks
SETTINGS = {
    "alone": {},
    "batch": dict(starts=(0, 0), lengths=(40, 40)),
    "ragged": RAGGED,
    "window": dict(window=9),
    "ragged windows": dict(RAGGED, window=9),
    "grouped heads": dict(RAGGED, groups=2),
    "several blocks of keys": LONG,
}


@pytest.mark.covering
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_drafted_query_has_the_bits_of_a_single_step(dtype: torch.dtype, name: str, setting: str) -> None:
    assert apart(Case(TREES[name], dtype=dtype, **SETTINGS[setting])) == 0


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TREES)
def test_it_is_attention(name: str, setting: str) -> None:
    case = Case(TREES[name], **SETTINGS[setting])
    query, key, value = case.tensors()
    key, value = (tensor.repeat_interleave(case.groups, 1) for tensor in (key, value))
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=case.bias())
    torch.testing.assert_close(drafted(case), wanted, rtol=1e-5, atol=1e-5)


def in_place(parent: list[int]) -> list[module.LeafPath]:
    return [module.LeafPath(list(range(len(parent))), 0)]


def whole_rows(pool: object, tree: Tree, batch: int) -> list[module.RowGroup]:
    own = leaf_paths(tree.parent[0].tolist())
    return [module.RowGroup(slice(row, row + 1), 0, pool.lengths[row], own) for row in range(batch)]


@pytest.mark.parametrize("wrong", ("slots", "queries", "tree", "padding"))
def test_attention_mutants_are_detected(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of slots, any number of queries, a path's keys where they were drafted, slots counted from the padding."""
    if wrong == "slots":
        monkeypatch.setattr(module, "SLOTS", 1)
    elif wrong == "queries":
        monkeypatch.setattr(
            module, "_block", lambda attention, q, k, v, bias, scale: attention(q, k, v, attn_mask=bias)
        )
        monkeypatch.setattr(module, "BLOCK", 64)
    elif wrong == "tree":
        monkeypatch.setattr(module, "leaf_paths", in_place)
    else:
        monkeypatch.setitem(globals(), "row_groups", whole_rows)
    assert apart(Case(TREES["tree"], **(LONG if wrong == "padding" else RAGGED))) > 0


def test_every_node_is_scored_once_after_its_own_path() -> None:
    tree = TREES["tree"]
    found = leaf_paths(tree.parent[0].tolist())
    asked = [node for path in found for node in path.nodes[path.first :]]
    assert sorted(asked) == list(range(tree.nodes))
    for path in found:
        assert path.nodes == tree.path[0, path.nodes[-1], : len(path.nodes)].tolist()
    assert SLOTS % 16 == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_a_padded_prompt_are_read_as_if_alone(dtype: torch.dtype) -> None:
    rng, count, starts = torch.Generator().manual_seed(0), 37, (0, 5, 20)
    q, k, v = (torch.randn(3, HEADS, count, SIZE, generator=rng).to(dtype) for _ in range(3))
    sees = torch.ones(count, count).tril().bool() & (torch.arange(count) >= torch.tensor(starts)[:, None, None])
    sdpa = F.scaled_dot_product_attention
    for mask in (
        sees[:, None],
        torch.zeros(3, 1, count, count, dtype=dtype).masked_fill(~sees[:, None], torch.finfo(dtype).min),
    ):
        out = attend_prompt(sdpa, q, k, v, mask)
        loose = sdpa(q, k, v, attn_mask=mask)
        for row, start in enumerate(starts):
            own = [tensor[row : row + 1, :, start:] for tensor in (q, k, v)]
            assert torch.equal(out[row : row + 1, :, start:], attend_prompt(sdpa, *own, is_causal=True))
            torch.testing.assert_close(out[row, :, start:], loose[row, :, start:])
