"""EAGLE-2's forward pass and dynamic tree equal the public code's on the same weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList

from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.target_match import TargetMatch
from mmspec.core.round.tree import dynamic_tree
from mmspec.vlm.drafters.eagle import Eagle, EagleConfig
from mmspec.vlm.processors.nodes import NodeProcessors
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("vlm/eagle2_llama")


def eagle_of(public: dict[str, Tensor]) -> Eagle:
    drafter = Eagle(EagleConfig(hidden_size=64, intermediate_size=176, num_attention_heads=4, vocab_size=128)).eval()
    layer = "weight.layers.0."
    rows = {
        "layer.qkv": [f"{layer}self_attn.{x}_proj.weight" for x in "qkv"],
        "layer.out": [f"{layer}self_attn.o_proj.weight"],
        "layer.norm": [f"{layer}post_attention_layernorm.weight"],
        "layer.gate_up": [f"{layer}mlp.{x}_proj.weight" for x in ("gate", "up")],
        "layer.down": [f"{layer}mlp.down_proj.weight"],
        "fc": ["weight.fc.weight"],
    }
    state = {f"{name}.weight": torch.cat([public[key] for key in keys]) for name, keys in rows.items()}
    drafter.load_state_dict({**state, "fc.bias": public["weight.fc.bias"]})
    return drafter.requires_grad_(False)


def target_of(public: dict[str, Tensor]) -> SimpleNamespace:
    """What a drafter needs of a target: head, embeddings, and the states of the prompt x_1..x_12 whose next token is x_13."""
    head, embed = nn.Linear(64, 128, bias=False), nn.Embedding(128, 64)
    head.weight.data, embed.weight.data = public["lm_head"], public["weight.embed_tokens.weight"]
    ids = public["ids"]
    parts = SimpleNamespace(
        head=head, embed=embed, placeholders=(), tokens_per_image=None, hidden_size=64, vocab_size=128
    )
    return SimpleNamespace(
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
        prompt_hidden=public["target_hidden"],
        pending=ids[:, 12],
        paths=[[0]],
    )


def test_predicted_features_match_the_public_code(public: dict[str, Tensor]) -> None:
    drafter = eagle_of(public)
    rotary = drafter.layer.rotary(12, torch.device("cpu"), torch.float32)[None]
    fused = drafter.fuse(public["embeds_shifted"], public["target_hidden"])
    out = drafter(*fused, rotary, SlotCache(1, 12), None)
    torch.testing.assert_close(out, public["draft_hidden"], **CLOSE)


def same_tree(draft: Draft, tokens: Tensor, mask: Tensor, depth: Tensor) -> None:
    assert torch.equal(draft.value, tokens)
    assert torch.equal(draft.tree.ancestor[0], mask[0, 0].bool())
    assert torch.equal(draft.tree.depth[0], depth)
    assert draft.valid is None or draft.valid.all()


def test_two_rounds_of_trees_match_the_public_code(public: dict[str, Tensor]) -> None:
    drafter, target, keys = eagle_of(public), target_of(public), Keys.of(0, 1)
    # the public depth counts expansions after the first level, its 10 nodes count the root
    state = drafter.with_shape(DynamicTree(nodes=9, depth=4, width=3)).open(target)
    first = root_only(target.pending)
    zero = torch.zeros(1, dtype=torch.long)
    state.observe(
        target,
        first,
        Evidence(hidden=public["target_hidden"][:, -1:]),
        Verdict("path", zero, zero[:, None], zero, correction=target.pending),
    )
    draft = state.propose(target, keys)
    same_tree(draft, public["draft_tokens"], public["tree_mask"], public["tree_position_ids"])

    ids = public["round2.ids"]
    path = next(
        draft.tree.path[0, n]
        for n in range(10)
        if draft.tree.depth[0, n] == 2 and torch.equal(draft.value[0, draft.tree.path[0, n, 1:3]], ids[0, 13:15])
    )
    hidden = torch.zeros(1, 10, 64)
    hidden[0, path[:3]] = public["round2.target_hidden"][0]
    target.paths, target.pending = [path[:3].tolist()], ids[:, -1]
    verdict = Verdict("path", path[2:3], path[None], torch.tensor([2]), correction=target.pending)
    state.observe(target, draft, Evidence(hidden=hidden), verdict)
    again = state.propose(target, keys)
    same_tree(again, public["round2.draft_tokens"], public["round2.tree_mask"], public["round2.tree_position_ids"])


@pytest.mark.parametrize("name", ("none", "two", "full", "tie_first_wins", "short_leaf"))
def test_greedy_verification_accepts_the_same_path_as_the_public_code(name: str) -> None:
    public = case("vlm/eagle2_verify_greedy")
    logits, table = public[f"{name}.logits"], public[f"{name}.candidates"]
    parent, value, scores, at = [0], [int(table[0, 0])], [logits[0, 0]], {(): 0}
    for row in range(table.shape[0]):
        for column in range(1, table.shape[1]):
            if table[row, column] < 0:
                break
            prefix = tuple(table[row, 1 : column + 1].tolist())
            if prefix not in at:
                at[prefix] = len(parent)
                parent.append(at[prefix[:-1]])
                value.append(prefix[-1])
                scores.append(logits[row, column])
    tree = dynamic_tree(torch.tensor([parent]), table.shape[1], len(parent))
    draft = Draft(torch.tensor([value]), tree, Law("deterministic"))
    evidence, rule = Evidence(scores=torch.stack(scores)[None], greedy=True), TargetMatch()
    verdict = rule.select(rule.weigh(evidence, draft), torch.rand(1, len(parent)), draft)
    assert int(verdict.depth) == int(public[f"{name}.accept"])
    torch.testing.assert_close(evidence.scores[0, int(verdict.node)], public[f"{name}.next_logits"])
