"""ViSpec's adaptor, compression, injection and trees equal the public code's on the same weights, read by their names."""

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
from mmspec.vlm.drafters.vispec import ViSpec
from mmspec.vlm.processors.nodes import NodeProcessors
from tests.parity import case
from tests.vlm.drafters.eagle.test_parity import same_tree

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIG = dict(
    model_type="llava_next",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    hidden_act="silu",
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("vlm/vispec_llava_one_image")


@pytest.fixture(scope="module")
def drafter(public: dict[str, Tensor]) -> ViSpec:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    return mmspec.vlm.drafter_from_state_dict("vispec", weights, CONFIG)


def view_of(public: dict[str, Tensor]) -> PromptView:
    """All pairs of the prompt, the one with the newest token too."""
    picture = torch.cat([public["image_mask"][:, 1:].long(), torch.zeros(1, 1, dtype=torch.long)], 1)
    return PromptView(public["inputs_embeds_shifted"], public["target_hidden"], picture)


def test_the_adaptor_output_matches_the_public_code(drafter: ViSpec, public: dict[str, Tensor]) -> None:
    torch.testing.assert_close(drafter.adaptor(public["adaptor_in"]), public["adaptor_out"], **CLOSE)


def test_slots_of_a_prompt_match_the_public_code(drafter: ViSpec, public: dict[str, Tensor]) -> None:
    slots = drafter.read(view_of(public))
    torch.testing.assert_close(slots.attend, public["compressed_input"], **CLOSE)
    assert torch.equal(slots.position, public["compressed_positions"])
    assert slots.count.tolist() == [int(public["cached_rows"])]
    assert slots.next_position.tolist() == [int(public["next_position"])]
    width = 64
    vector = public["global_vector"] @ drafter.inject.weight[:, width:].T + drafter.inject.bias
    torch.testing.assert_close(slots.last_context, vector, **CLOSE)
    rotary = drafter.layer.rotary(32, torch.device("cpu"), torch.float32)[slots.position]
    out = drafter(slots.attend, slots.carry, rotary, SlotCache(1, 32), None)
    torch.testing.assert_close(out, public["compressed_output"], **CLOSE)
    whole = torch.zeros(1, 24, width).index_copy(
        1, slots.position[0], out
    )  # the public code fills dropped slots with 0
    torch.testing.assert_close(whole, public["draft_hidden"], **CLOSE)


def test_two_rounds_of_trees_match_the_public_code(drafter: ViSpec, public: dict[str, Tensor]) -> None:
    ids, keys = public["ids"], Keys.of(0, 1)
    target = target_of(public)
    # the public depth counts expansions after the first level, its 10 nodes count the root
    state = drafter.with_shape(DynamicTree(nodes=9, depth=4, width=3)).open(target)
    state.ruling.zero_()  # the public code may draft placeholders
    zero = torch.zeros(1, dtype=torch.long)
    verdict = Verdict("path", zero, zero[:, None], zero, correction=ids[:, -1])
    state.observe(target, root_only(ids[:, -1]), Evidence(hidden=public["target_hidden"][:, -1:]), verdict)
    draft = state.propose(target, keys)
    same_tree(draft, public["draft_tokens"], public["tree_mask"], public["tree_position_ids"])
    assert state.cache.lengths == [int(public["cached_rows"])]
    assert state.next_position.tolist() == [int(public["next_position"])]

    new = public["round2.ids"][0, -3:]  # two accepted and the one that follows
    path = next(
        draft.tree.path[0, n, :3]
        for n in range(10)
        if draft.tree.depth[0, n] == 2 and torch.equal(draft.value[0, draft.tree.path[0, n, 1:3]], new[:2])
    )
    hidden = torch.zeros(1, 10, 64)
    hidden[0, path] = public["round2.target_hidden"][0]
    target.paths, target.pending = [path.tolist()], new[-1:]
    verdict = Verdict("path", path[-1:], path[None], torch.tensor([2]), correction=target.pending)
    state.observe(target, draft, Evidence(hidden=hidden), verdict)
    assert state.next_position.tolist() == [int(public["round2.layer_positions"][0, 0])]
    _, fed = drafter.fuse(target.parts.embed(new[None]), public["round2.target_hidden"], state.context)
    torch.testing.assert_close(fed, public["round2.layer_input"], **CLOSE)
    again = state.propose(target, keys)
    same_tree(again, public["round2.draft_tokens"], public["round2.tree_mask"], public["round2.tree_position_ids"])
    assert state.cache.lengths == [16] and state.next_position.tolist() == [27]


def target_of(public: dict[str, Tensor]) -> SimpleNamespace:
    """What a drafter needs of a target; prompt ids only tell the picture (1) from text (0)."""
    head, embed = nn.Linear(64, 128, bias=False), nn.Embedding(128, 64)
    head.weight.data, embed.weight.data = public["lm_head"], public["weight.embed_tokens.weight"]
    return SimpleNamespace(
        parts=SimpleNamespace(
            head=head, embed=embed, placeholders=(1,), tokens_per_image=None, hidden_size=64, vocab_size=128
        ),
        processors=NodeProcessors(LogitsProcessorList(), 1),
        greedy=True,
        batch=1,
        device=torch.device("cpu"),
        padding=None,
        cache=SlotCache(1, 64),
        prompt=public["image_mask"].long(),
        tokens=[[]],
        live=[True],
        rooms=lambda longest: [longest],
        prompt_embeds=public["inputs_embeds"],
        prompt_hidden=public["target_hidden"],
        pending=public["ids"][:, -1],
        paths=[[0]],
    )


def published(**changes: object) -> tuple[dict[str, Tensor], dict]:
    """Random tensors under the published names and the config they fit: Qwen's shape, with biases."""
    config = dict(
        hidden_size=24,
        intermediate_size=20,
        num_attention_heads=3,
        num_key_value_heads=3,
        vocab_size=40,
        num_hidden_layers=1,
        rope_theta=1e6,
        qkv_bias=True,
        model_type="qwen2_5_vl",
        **changes,
    )
    square, tall = (24, 24), (20, 24)
    shapes = {"embed_tokens.weight": (40, 24), "fc.weight": (24, 48), "img_fc.weight": (24, 48)}
    shapes |= {f"layers.0.self_attn.{x}_proj.weight": square for x in "qkvo"}
    shapes |= {f"imadpt.{x}_proj.weight": square for x in "kvo"} | {"imadpt.q": (3, 3, 8)}
    shapes |= {"layers.0.mlp.gate_proj.weight": tall, "layers.0.mlp.up_proj.weight": tall}
    shapes |= {"layers.0.mlp.down_proj.weight": (24, 20), "layers.0.post_attention_layernorm.weight": (24,)}
    shapes |= {f"layers.0.self_attn.{x}_proj.bias": (24,) for x in "qkv"} | {
        f"imadpt.{x}_proj.bias": (24,) for x in "kv"
    }
    shapes |= {"fc.bias": (24,), "img_fc.bias": (24,)} if config.get("bias", True) else {}
    return {name: torch.randn(shape) for name, shape in shapes.items()}, config


@pytest.mark.parametrize("bias", (True, False))
def test_published_files_of_any_size_are_read(bias: bool) -> None:
    state, config = published(bias=bias)
    drafter = mmspec.vlm.drafter_from_state_dict("vispec", state, config)
    assert (drafter.config.num_q, drafter.config.rope_theta, drafter.config.qkv_bias) == (3, 1e6, True)
    assert torch.equal(drafter.adaptor.q, state["imadpt.q"])
    assert torch.equal(drafter.inject.weight, state["img_fc.weight"])
    assert torch.equal(drafter.adaptor.v_proj.bias, state["imadpt.v_proj.bias"])
    assert torch.equal(drafter.layer.qkv.bias[24:48], state["layers.0.self_attn.k_proj.bias"])
    slots = drafter.read(
        PromptView(torch.randn(1, 9, 24), torch.randn(1, 9, 24), torch.tensor([[0, 1, 1, 1, 1, 0, 2, 2, 0]]))
    )
    assert slots.position.tolist() == [[0, 3, 4, 5, 6, 7, 8]] and slots.attend.isfinite().all()


def test_mismatched_files_are_refused_with_the_missing_and_unknown_weights() -> None:
    state, config = published()
    wrong = {name: value for name, value in state.items() if "imadpt.k" not in name} | {"head": torch.zeros(1)}
    with pytest.raises(
        ValueError, match=r"missing \['imadpt.k_proj.weight', 'imadpt.k_proj.bias'\], unknown \['head'\]"
    ):
        mmspec.vlm.drafter_from_state_dict("vispec", wrong, config)
    del state["imadpt.q"]
    with pytest.raises(ValueError, match="load a stage-1 file as 'eagle2'"):
        mmspec.vlm.drafter_from_state_dict("vispec", state, config)
