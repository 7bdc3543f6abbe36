"""EAGLE-3's forward pass and dynamic tree equal the public code's on the same weights, read by their published names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList

import mmspec.vlm
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.eagle3 import Eagle3
from mmspec.vlm.processors.nodes import NodeProcessors
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIG = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_act="silu",
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    draft_vocab_size=48,
    eagle_aux_hidden_state_layer_ids=[2, 4, 5],
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("vlm/eagle3_llama_gqa")


@pytest.fixture(scope="module")
def drafter(public: dict[str, Tensor]) -> Eagle3:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    return mmspec.vlm.drafter_from_state_dict("eagle3", weights, CONFIG)


def embedding_of(public: dict[str, Tensor]) -> nn.Embedding:
    return nn.Embedding.from_pretrained(public["weight.embed_tokens.weight"])


def test_features_and_scores_match_the_public_code(drafter: Eagle3, public: dict[str, Tensor]) -> None:
    embed, ids = embedding_of(public), public["ids"][:, 1:]
    rotary = drafter.layer.rotary(12, torch.device("cpu"), torch.float32)[None]
    read, fused = drafter.fuse(embed(ids), public["features"])
    torch.testing.assert_close(fused, public["fused"], **CLOSE)
    torch.testing.assert_close(read, public["attn_input"], **CLOSE)
    out = drafter(read, fused, rotary, SlotCache(1, 12), None)
    torch.testing.assert_close(out, public["draft_hidden"], **CLOSE)
    torch.testing.assert_close(drafter.scores(out), public["draft_logits"], **CLOSE)
    again = drafter(*drafter.fuse(embed(ids.roll(-1, 1)), out), rotary, SlotCache(1, 12), None)
    torch.testing.assert_close(again, public["own_feature_hidden"], **CLOSE)


def test_scores_stand_at_their_tokens_places(drafter: Eagle3, public: dict[str, Tensor]) -> None:
    full = drafter.logits(public["draft_hidden"], 1, None)
    ids = torch.arange(48) + public["weight.d2t"]
    torch.testing.assert_close(full[..., ids], public["draft_logits"], **CLOSE)
    assert torch.equal(full.isfinite()[0, 0], public["weight.t2d"].bool())


def test_the_tree_matches_the_public_code(drafter: Eagle3, public: dict[str, Tensor]) -> None:
    embed, ids = embedding_of(public), public["ids"]
    parts = SimpleNamespace(
        head=None, embed=embed, placeholders=(), tokens_per_image=None, hidden_size=64, vocab_size=128, layers=8
    )
    target = SimpleNamespace(
        parts=parts,
        processors=NodeProcessors(LogitsProcessorList(), 1),
        greedy=True,
        batch=1,
        device=torch.device("cpu"),
        padding=None,
        cache=SlotCache(1, 32),
        prompt=ids[:, :12],
        tokens=[[]],
        live=[True],
        rooms=lambda longest: [longest],
        prompt_embeds=embed(ids[:, :12]),
        prompt_hidden=public["features"],
        pending=ids[:, 12],
        paths=[[0]],
    )
    # the public depth counts expansions after the first level, its 10 nodes count the root
    state = drafter.with_shape(DynamicTree(nodes=9, depth=4, width=3)).open(target)
    zero = torch.zeros(1, dtype=torch.long)
    state.observe(
        target,
        root_only(target.pending),
        Evidence(hidden=public["features"][:, -1:]),
        Verdict("path", zero, zero[:, None], zero, correction=target.pending),
    )
    draft = state.propose(target, Keys.of(0, 1))
    assert torch.equal(draft.value, public["draft_tokens"])
    assert torch.equal(draft.tree.ancestor[0], public["tree_mask"][0, 0].bool())
    assert torch.equal(draft.tree.depth[0], public["tree_position_ids"])
    assert draft.valid is None or draft.valid.all()


def test_the_unrolled_training_pass_starts_from_the_public_features(drafter: Eagle3, public: dict[str, Tensor]) -> None:
    embeds = embedding_of(public)(public["ids"][:, 1:])
    view = PromptView(embeds, public["features"], torch.zeros(1, 12, dtype=torch.long))
    outputs = drafter.unroll(drafter.read(view), view, 0, 1)
    torch.testing.assert_close(outputs[0], public["draft_hidden"], **CLOSE)
