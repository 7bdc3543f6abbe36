"""A Gemma 4 assistant drafts what the public code drafts where that reads committed tokens alone."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters.gemma4 import Gemma4Assistant
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
_SAME = dict(
    vocab_size=96,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    global_head_dim=16,
    sliding_window=6,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    rope_parameters=ROPE,
)
TARGET = dict(
    _SAME,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=6,
    num_kv_shared_layers=2,
    layer_types=["sliding_attention", "full_attention"] * 3,
    hidden_size_per_layer_input=4,
    vocab_size_per_layer_input=96,
    final_logit_softcapping=None,
)
ASSISTANT = dict(
    backbone_hidden_size=32,
    use_ordered_embeddings=False,
    num_centroids=12,
    centroid_intermediate_top_k=3,
    text_config=dict(
        _SAME,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_kv_shared_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
    ),
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("modern/gemma4_assistant")


def weights(public: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in public.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def target(public: dict[str, Tensor]) -> hf.Gemma4ForCausalLM:
    model = hf.Gemma4ForCausalLM(hf.Gemma4TextConfig(**TARGET)).eval()
    missing, unexpected = model.load_state_dict(weights(public, "target."), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    model.generation_config = hf.GenerationConfig()
    return model.requires_grad_(False)


def assistant(public: dict[str, Tensor], ordered: bool = False) -> Gemma4Assistant:
    state = weights(public, "weight.") | (weights(public, "ordered.weight.") if ordered else {})
    made = mmspec.vlm.drafter_from_state_dict(
        "gemma4_assistant", state, dict(ASSISTANT, use_ordered_embeddings=ordered)
    )
    return made.with_shape(Chain(FixedLength(4)))


@pytest.mark.parametrize("prefix", ("", "clean."))
def test_four_steps_after_a_prompt_match_the_public_code(prefix: str, target, public: dict[str, Tensor]) -> None:
    ids, drafter = public[f"{prefix}input_ids"], assistant(public)
    run = mmspec.vlm.start(target, drafter=drafter, input_ids=ids[:, :-1], max_new_tokens=30, do_sample=False)
    run.step()
    assert run.target.tokens == [ids[0, -1:].tolist()]
    torch.testing.assert_close(run.target.prompt_hidden, public[f"{prefix}target_last_hidden"], **CLOSE)
    rows, own = [], drafter.logits

    def logits(out: Tensor, depth: int, head: object) -> Tensor:
        rows.append((drafter.states(out), own(out, depth, head)))
        return rows[-1][1]

    run.state.drafter.logits = logits
    with torch.no_grad():
        draft = run.state.propose(run.target, run.keys)
    del run.state.drafter.logits
    for name, made in zip(("state", "logits"), zip(*rows, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(made, 1), public[f"{prefix}{name}"], **CLOSE)
    assert torch.equal(draft.value[:, 1:], public[f"{prefix}draft_tokens"])


def test_after_a_rejection_the_draft_is_that_of_the_committed_text(target, public: dict[str, Tensor]) -> None:
    """Where the public code reads what a rejected token left behind."""
    ids, drafter = public["round2.input_ids"], assistant(public)
    run = mmspec.vlm.start(target, drafter=drafter, input_ids=public["prompt_ids"], max_new_tokens=30, do_sample=False)
    while len(run.target.tokens[0]) + 14 < ids.shape[1]:
        run.step()
    assert run.target.tokens == [ids[0, 14:].tolist()]
    with torch.no_grad():
        draft = run.state.propose(run.target, run.keys)
    assert torch.equal(draft.value[:, 1:], public["clean.draft_tokens"])
    assert not torch.equal(draft.value[:, 1:], public["round2.draft_tokens"])


def test_the_whole_generation_is_the_targets_own(target, public: dict[str, Tensor]) -> None:
    ids = public["prompt_ids"]
    out = mmspec.generate(target, drafter=assistant(public), input_ids=ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(out, public["generated"])


def test_a_clustered_head_scores_as_the_public_code(target, public: dict[str, Tensor]) -> None:
    drafter = assistant(public, ordered=True)
    ids = public["input_ids"]
    run = mmspec.vlm.start(target, drafter=drafter, input_ids=ids[:, :-1], max_new_tokens=30, do_sample=False)
    run.step()
    with torch.no_grad():
        draft = run.state.propose(run.target, run.keys)
        first = drafter.logits(run.state.root[:, None], 1, None)
    assert torch.equal(draft.value[:, 1:], public["ordered.draft_tokens"])
    torch.testing.assert_close(first, public["ordered.logits"][:, :1], **CLOSE)


def test_head_sizes_of_full_layers_may_be_listed_by_layer(public: dict[str, Tensor]) -> None:
    """As transformers saves such configs now."""
    text = {name: value for name, value in ASSISTANT["text_config"].items() if name != "global_head_dim"}
    config = dict(ASSISTANT, text_config=text | {"per_layer_config": {"2": {"head_dim": 16}}})
    made = mmspec.vlm.drafter_from_state_dict("gemma4_assistant", weights(public, "weight."), config)
    assert made.config == assistant(public).config
