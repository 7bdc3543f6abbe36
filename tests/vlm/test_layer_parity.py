"""A published Gemma 4 of random weights: windows, two shapes of heads, and layers that read what others stored."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import LogitsProcessorList, StoppingCriteriaList

import mmspec
from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.tree import static_tree
from mmspec.vlm.admission import take_apart
from mmspec.vlm.prefill import prepare_inputs
from mmspec.vlm.target import TextTarget
from tests.parity import case
from tests.vlm.drafts import SHAPES, Scripted
from tests.vlm.layer_kinds import keep

KINDS = ("sliding_attention", "full_attention")
STORING = {"sliding_attention": 2, "full_attention": 3}  # the last layer of each type with keys of its own
CLOSE = dict(atol=2e-5, rtol=1e-4)


@cache
def public() -> dict[str, Tensor]:
    return case("modern/gemma4_assistant")


@cache
def target() -> nn.Module:
    config = hf.Gemma4TextConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=16,
        sliding_window=6,
        hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=96,
        final_logit_softcapping=None,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    )
    model = hf.Gemma4ForCausalLM(config).eval().requires_grad_(False)
    weights = {name.removeprefix("target."): w for name, w in public().items() if name.startswith("target.")}
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unknown, (missing, unknown)
    model.tie_weights()
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def opened(ids: Tensor) -> TextTarget:
    parts = take_apart(target())
    ids, kwargs = prepare_inputs(parts.model, {"input_ids": ids})
    return TextTarget(
        parts, ids, LogitsProcessorList(), StoppingCriteriaList(), greedy=True, pad=0, model_kwargs=kwargs
    )


def check_stored(request: TextTarget, moment: str) -> None:
    length = request.cache.lengths[0]
    for kind in KINDS:
        for name, pool in zip(("keys", "values"), request.cache.at(STORING[kind]), strict=True):
            torch.testing.assert_close(pool[:, :, :length], public()[f"{moment}{kind}.{name}"][:, :, :length], **CLOSE)


def test_committed_keys_and_values_of_every_shape_match_the_published_code() -> None:
    """Behind the prompt, and behind a round of which all but the root is rejected: nothing stale, at any kind of layer."""
    ids, (root, after) = public()["prompt_ids"], public()["clean.input_ids"][0, -2:].tolist()
    request = opened(ids)
    draft, evidence = request.prefill()
    torch.testing.assert_close(request.prompt_hidden, public()["target_last_hidden"], **CLOSE)
    keep(request, draft, evidence, [0], root)
    assert request.cache.lengths == [14] and len(request.cache.groups) == 2
    check_stored(request, "")
    value = torch.tensor([[root, 5, 6, 7, 8, 9]])
    draft = Draft(value, static_tree((0, 0, 0, 1, 1, 2)), Law("deterministic"))
    evidence = request.score(draft)
    torch.testing.assert_close(evidence.hidden[:, 0], public()["clean.target_last_hidden"][:, -1], **CLOSE)
    assert int(evidence.scores[0, 0].argmax()) == after
    keep(request, draft, evidence, [0], after)
    assert request.cache.lengths == [15]
    check_stored(request, "clean.")


@pytest.mark.parametrize("shape", (None, *SHAPES))
def test_words_match_the_published_code(shape: str | None) -> None:
    ids, told = public()["prompt_ids"], public()["generated"]
    count = told.shape[1] - ids.shape[1]
    drafter = None if shape is None else Scripted([told[0, ids.shape[1] :].tolist()], shape, vocab=96)
    assert torch.equal(mmspec.generate(target(), drafter=drafter, input_ids=ids, max_new_tokens=count), told)
