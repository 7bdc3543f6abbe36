"""Medusa's heads and tree equal the public code's on the same weights, read by their published names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList

import mmspec.vlm
from mmspec.core.drafting.shapes import StaticTree
from mmspec.core.round.draft import Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.vlm.drafters.medusa import Medusa
from mmspec.vlm.processors.nodes import NodeProcessors
from tests.parity import case

CONFIG = dict(medusa_num_heads=3, medusa_num_layers=1, base_model_name_or_path="random")
TREE = StaticTree((0, 0, 0, 0, 1, 1, 2, 4, 4, 5))  # the case's choices, sorted as the public code sorts them


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("vlm/medusa_heads")


@pytest.fixture(scope="module")
def medusa(public: dict[str, Tensor]) -> Medusa:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    return mmspec.vlm.drafter_from_state_dict("medusa", weights, CONFIG)


def test_logits_match_the_public_code(medusa: Medusa, public: dict[str, Tensor]) -> None:
    made = [medusa.logits(medusa.feature(i, public["hidden"]), i + 1, nn.Identity()) for i in range(3)]
    torch.testing.assert_close(torch.stack(made), public["medusa_logits"], atol=2e-5, rtol=1e-4)


def test_a_static_tree_matches_the_public_code(medusa: Medusa, public: dict[str, Tensor]) -> None:
    root = public["root_logits"].argmax(-1)[0]
    parts = SimpleNamespace(
        head=None, embed=nn.Embedding(128, 64), placeholders=(), tokens_per_image=None, hidden_size=64, vocab_size=128
    )
    target = SimpleNamespace(
        parts=parts,
        processors=NodeProcessors(LogitsProcessorList(), 1),
        greedy=True,
        batch=1,
        device=torch.device("cpu"),
        tokens=[[]],
        live=[True],
        rooms=lambda longest: [longest],
        pending=root,
    )
    state = medusa.with_shape(TREE).open(target)
    zero = torch.zeros(1, dtype=torch.long)
    verdict = Verdict("path", zero, zero[:, None], zero, correction=root)
    state.observe(target, root_only(root), Evidence(hidden=public["hidden"][:, -1:]), verdict)
    draft = state.propose(target, Keys.of(0, 1))
    assert torch.equal(draft.value, public["tree_candidates"])
    assert torch.equal(draft.tree.ancestor[0], public["tree.medusa_attn_mask"][0, 0].bool())
    assert torch.equal(draft.tree.depth[0], public["tree.medusa_position_ids"])
    table = public["tree.retrieve_indices"]
    leaves = [n for n in range(10) if n not in draft.tree.parent[0].tolist()]
    ours = {tuple(draft.tree.path[0, n, : int(draft.tree.depth[0, n]) + 1].tolist()) for n in leaves}
    assert ours == {tuple(n for n in row if n >= 0) for row in table.tolist()}
    for row, tokens in zip(table, public["candidates"], strict=True):
        assert torch.equal(draft.value[0, row[row >= 0]], tokens[row >= 0])


def test_files_of_the_heads_alone_and_of_the_whole_model_are_read(medusa: Medusa, public: dict[str, Tensor]) -> None:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    alone = {name.removeprefix("medusa_head."): value for name, value in weights.items()}
    whole = weights | {"model.norm.weight": torch.ones(64), "lm_head.weight": public["lm_head"]}
    for state in (alone, whole):
        again = mmspec.vlm.drafter_from_state_dict("medusa", state, CONFIG).state_dict()
        assert all(torch.equal(value, again[name]) for name, value in medusa.state_dict().items())


def test_blocks_of_a_deeper_head_keep_their_own_weights() -> None:
    shapes = {
        "0.linear.weight": (6, 6),
        "0.linear.bias": (6,),
        "1.linear.weight": (6, 6),
        "1.linear.bias": (6,),
        "2.weight": (11, 6),
    }
    weights = {f"medusa_head.{i}.{name}": torch.randn(shape) for i in range(2) for name, shape in shapes.items()}
    config = dict(medusa_num_heads=2, medusa_num_layers=2)
    made = mmspec.vlm.drafter_from_state_dict("medusa", weights, config)
    first, second = made.blocks[1]
    assert torch.equal(first.linear.weight, weights["medusa_head.1.0.linear.weight"])
    assert torch.equal(second.linear.weight, weights["medusa_head.1.1.linear.weight"])
    weights["medusa_head.7.0.linear.bias"] = weights.pop("medusa_head.0.0.linear.bias")
    with pytest.raises(ValueError, match=r"missing .*'2.0.linear.weight'|missing \['0.0.linear.bias'"):
        mmspec.vlm.drafter_from_state_dict("medusa", weights, config)
    with pytest.raises(ValueError, match="medusa_num_heads: expected 2 as in the tensors, got 3"):
        mmspec.vlm.drafter_from_state_dict("medusa", weights, {"medusa_num_heads": 3})
    with pytest.raises(ValueError, match="medusa_num_layers: expected 2 as in the tensors, got 3"):
        mmspec.vlm.drafter_from_state_dict("medusa", weights, dict(config, medusa_num_layers=3))
