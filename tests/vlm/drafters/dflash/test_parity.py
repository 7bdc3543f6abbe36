"""DFlash's context, blocks and cache equal the public code's over two rounds of a real target."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor

import mmspec
from mmspec.core.round.draft import Verdict
from mmspec.core.round.loop import DecodingRun
from mmspec.vlm.drafters.dflash import DFlash
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
_SIZES = dict(vocab_size=128, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
TARGET = dict(
    _SIZES,
    intermediate_size=64,
    num_hidden_layers=4,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4},
)
DRAFT = dict(
    _SIZES,
    intermediate_size=96,
    num_hidden_layers=2,
    layer_types=["full_attention"] * 2,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    attention_bias=False,
    hidden_act="silu",
    max_position_embeddings=256,
    block_size=8,
    num_target_layers=4,
    dflash_config={"mask_token_id": 127, "target_layer_ids": [0, 1, 2]},
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("modern/dflash_full")


def weights(public: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in public.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def target(public: dict[str, Tensor]) -> hf.Qwen3ForCausalLM:
    model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**TARGET)).eval()
    model.load_state_dict(weights(public, "target."))
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def drafter(public: dict[str, Tensor]) -> DFlash:
    return mmspec.vlm.drafter_from_state_dict("dflash", weights(public, "weight."), DRAFT)


def opened(target: hf.Qwen3ForCausalLM, drafter: DFlash, public: dict[str, Tensor]) -> DecodingRun:
    ids = public["prompt_ids"]
    run = mmspec.vlm.start(
        target, drafter=drafter, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
    )
    run.step()
    return run


def block_is(run: DecodingRun, public: dict[str, Tensor], prefix: str = "") -> None:
    draft = run.state.propose(run.target, run.keys)
    assert torch.equal(draft.value[:, :1], public[f"{prefix}block_ids"][:, :1])
    torch.testing.assert_close(run.state.rows, public[f"{prefix}draft_hidden"][:, 1:], **CLOSE)
    torch.testing.assert_close(run.state.unary, public[f"{prefix}draft_logits"], **CLOSE)
    assert torch.equal(draft.value[:, 1:], public[f"{prefix}draft_tokens"])


@torch.no_grad()
def test_two_rounds_match_the_drafts_of_the_public_code(target, drafter, public: dict[str, Tensor]) -> None:
    run = opened(target, drafter, public)
    torch.testing.assert_close(run.target.prompt_hidden, public["target_hidden"], **CLOSE)
    block_is(run, public)
    draft = run.state.propose(run.target, run.keys)
    assert torch.equal(draft.value, public["verify_ids"])
    evidence = run.target.score(draft)
    path = torch.tensor([[0, 1, 2, 3, 3, 3, 3, 3]])
    verdict = Verdict("path", path[:, 3], path, torch.tensor([3]), public["sequence"][:, -1])
    run.target.commit(draft, evidence, verdict)
    run.state.observe(run.target, draft, evidence, verdict)
    block_is(run, public, "round2.")
    assert run.state.cache.lengths == [25]  # nothing of a block
    for layer in range(2):
        keys, values = run.state.cache.at(layer)
        torch.testing.assert_close(keys[:, :, :25], public[f"round2.cache_keys_{layer}"], **CLOSE)
        torch.testing.assert_close(values[:, :, :25], public[f"round2.cache_values_{layer}"], **CLOSE)


def test_context_states_match_the_public_code(drafter: DFlash, public: dict[str, Tensor]) -> None:
    for round_ in ("", "round2."):
        made = drafter.context(public[f"{round_}target_hidden"])
        torch.testing.assert_close(made, public[f"{round_}context"], **CLOSE)


@pytest.mark.parametrize("taps", ([0, 1, 1], [1, 2, 3], [2, 1, 0]))
def test_other_taps_draft_otherwise(taps: list[int], target, public: dict[str, Tensor]) -> None:
    config = dict(DRAFT, dflash_config={"mask_token_id": 127, "target_layer_ids": taps})
    other = mmspec.vlm.drafter_from_state_dict("dflash", weights(public, "weight."), config, target=target)
    with pytest.raises(AssertionError):
        block_is(opened(target, other, public), public)
