"""Strict requests: drafted passes have the bits of single ones, so that greedy output equals plain decoding in any dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor

import mmspec
from mmspec.core.layers import strict as mode
from mmspec.core.layers import strict_ops
from mmspec.vlm import admission, pass_rows
from mmspec.vlm import target as target_module
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters import PromptLookup
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.strict_models import KINDS, inputs_of, model_of, row_of
from tests.vlm.tiny import PAD, VOCAB

DTYPES = (torch.float32, torch.bfloat16)
STEPS = 24


def decoded(kind: str, dtype: torch.dtype, inputs: dict[str, Tensor], drafter: object = None, strict: bool = True):
    settings = dict(max_new_tokens=STEPS, suppress_tokens=[97], return_dict=True, output_logits=True)
    settings["return_dict_in_generate"] = True
    return mmspec.generate(model_of(kind, dtype), drafter=drafter, strict=strict, **inputs, **settings)


@cache
def plainly(kind: str, dtype: torch.dtype, batch: int) -> object:
    """Strict plain decoding of `inputs_of(kind, batch)`."""
    return decoded(kind, dtype, inputs_of(kind, batch))


def logits_of(out: object) -> Tensor:
    """[B, T, V]."""
    return torch.stack(list(out.logits), 1)


def scripted(out: object, inputs: dict[str, Tensor], shape: str, invalid: bool = False) -> Scripted:
    return Scripted(continuation(out.sequences, inputs["input_ids"].shape[1]), shape, invalid=invalid)


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", (1, 4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_drafted_output_and_logits_are_those_of_plain_decoding(
    kind: str, dtype: torch.dtype, batch: int, shape: str
) -> None:
    inputs = inputs_of(kind, batch)
    plain = plainly(kind, dtype, batch)
    out = decoded(kind, dtype, inputs, scripted(plain, inputs, shape, invalid=shape == "static"))
    assert torch.equal(out.sequences, plain.sequences) and torch.equal(logits_of(out), logits_of(plain))
    assert out.stats.target_passes < plain.stats.target_passes and out.stats.exact


@pytest.mark.default_cells("llama")
@pytest.mark.parametrize("kind", KINDS)
def test_without_strict_bits_a_near_tie_goes_another_way(kind: str) -> None:
    """In half precision; in full precision logits differ too, though the ties of these few texts may hold."""
    found = {dtype: [0, 0] for dtype in DTYPES}
    for dtype in DTYPES:
        for seed in range(3):
            inputs = inputs_of(kind, 1, seed)
            plain = decoded(kind, dtype, inputs, strict=False)
            out = decoded(kind, dtype, inputs, scripted(plain, inputs, "static"), strict=False)
            found[dtype][0] += not torch.equal(out.sequences, plain.sequences)
            found[dtype][1] += not torch.equal(logits_of(out), logits_of(plain))
    assert found[torch.bfloat16][0] > 0 and found[torch.float32][1] == 3, found


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ("llama", "window"))  # transformers encodes the pictures of a batch together
def test_a_row_has_the_bits_it_has_alone(kind: str, dtype: torch.dtype) -> None:
    inputs = inputs_of(kind, 4)
    together = plainly(kind, dtype, 4)
    length = inputs["input_ids"].shape[1]
    for row in range(4):
        alone_inputs = row_of(inputs, row)
        alone = decoded(kind, dtype, alone_inputs)
        assert (
            continuation(alone.sequences, alone_inputs["input_ids"].shape[1])[0]
            == together.sequences[row, length:].tolist()
        )
        assert torch.equal(logits_of(alone)[0], logits_of(together)[row])


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "shape"), list(zip(KINDS, SHAPES, strict=True)))
def test_the_cache_holds_the_bits_of_single_passes(kind: str, shape: str, dtype: torch.dtype) -> None:
    inputs = inputs_of(kind, 4)
    settings = dict(max_new_tokens=STEPS, suppress_tokens=[97], strict=True, **inputs)
    model = model_of(kind, dtype)
    plain = mmspec.vlm.start(model, **settings)
    plain.run()
    drafted = mmspec.vlm.start(model, drafter=Scripted(plain.target.tokens, shape), **settings)
    drafted.run()
    one, other = plain.target.cache, drafted.target.cache
    assert plain.target.tokens == drafted.target.tokens
    for row, length in enumerate(map(min, one.lengths, other.lengths)):  # drafts at the end may be committed with it
        assert length >= inputs["input_ids"].shape[1] + STEPS - 1
        for pool, same in ((one.keys, other.keys), (one.values, other.values)):
            assert torch.equal(pool[:, row, :, :length], same[:, row, :, :length])


def test_sampled_requests_compute_their_distributions_from_the_same_bits() -> None:
    inputs = inputs_of("llama", 4)
    asked = dict(do_sample=True, seed=[1, 2, 3, 4], max_new_tokens=12, strict=True)
    out = mmspec.generate(
        model_of("llama", torch.bfloat16), drafter=PromptLookup(), return_dict=True, **inputs, **asked
    )
    assert out.sequences.shape[1] == inputs["input_ids"].shape[1] + 12 and out.stats.exact


def test_through_transformers_own_call() -> None:
    model, inputs = model_of("llama", torch.bfloat16), inputs_of("llama", 4)
    settings = dict(max_new_tokens=STEPS, custom_generate=mmspec.decode, strict=True, **inputs)
    plain = model.generate(**settings)
    drafter = Scripted(continuation(plain, inputs["input_ids"].shape[1]))
    assert torch.equal(model.generate(drafter=drafter, **settings), plain)


MUTANTS: dict[str, tuple[object, str, Callable]] = {
    "products of any number of rows": (mode, "in_blocks", lambda product, x, rows: product(x)),
    "elements outside whole vectors": (mode, "in_vectors", lambda function, x: function(x)),
    "any number of slots": (strict_ops, "SLOTS", 1),
    "any number of queries": (
        strict_ops,
        "_block",
        lambda attend, q, k, v, bias, scale: attend(q, k, v, attn_mask=bias, scale=scale),
    ),
    "a path's keys where they were drafted": (
        strict_ops,
        "leaf_paths",
        lambda parent: [strict_ops.LeafPath(list(range(len(parent))), 0)],
    ),
    "a prompt beside others": (target_module, "over_prompt", lambda: mode.StrictMode(64)),
    "attention as it is": (pass_rows, "over_draft", lambda pool, tree, batch: mode.StrictMode(8)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_model_whose_bits_are_not_kept_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_OUTCOMES", type(admission._OUTCOMES)())
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(ValueError, match="expected drafted passes .* got .* of other bits .*; leave strict out"):
        decoded("llama", torch.float32, inputs_of("llama", 1))


def test_eager_attention_is_refused_and_the_model_goes_on_without() -> None:
    model, inputs = model_of("llama", torch.float32, "eager"), inputs_of("llama", 1)
    with pytest.raises(ValueError, match="other bits .*eager.* attn_implementation='sdpa', or leave strict out"):
        mmspec.generate(model, strict=True, max_new_tokens=4, **inputs)
    assert mmspec.generate(model, max_new_tokens=4, **inputs).shape[1] == inputs["input_ids"].shape[1] + 4


@pytest.mark.parametrize("kind", ("Gemma2", "GptOss"))
def test_the_error_for_a_class_without_sdpa_does_not_suggest_loading_it(kind: str) -> None:
    sizes = dict(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=PAD,
    )
    sizes |= dict(num_local_experts=2, num_experts_per_tok=1) if kind == "GptOss" else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**sizes)).eval()
    inputs = dict(inputs_of("llama", 1), max_new_tokens=4, do_sample=False)
    with pytest.raises(ValueError, match="eager attention .* leave strict out") as error:
        mmspec.generate(model, strict=True, **inputs)
    assert "attn_implementation" not in str(error.value)
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):  # as the class itself says
        type(model)._from_config(copy.deepcopy(model.config), attn_implementation="sdpa")
    assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **inputs), model.generate(**inputs))


def test_the_proof_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_OUTCOMES", type(admission._OUTCOMES)())
    asked, same_bits = [], admission.same_bits
    monkeypatch.setattr(admission, "same_bits", lambda parts: asked.append(1) or same_bits(parts))
    for _ in range(2):
        admission.prove_bits(take_apart(model_of("llama", torch.bfloat16)))
    assert len(asked) == 1
