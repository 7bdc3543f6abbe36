"""What targets do to their head's logits is what their own logits say."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.trained_drafter import LogitTransform

_SIZES = dict(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)


def models() -> dict[str, nn.Module]:
    return {
        "gemma2": hf.Gemma2ForCausalLM(hf.Gemma2Config(**_SIZES, final_logit_softcapping=0.5)),
        "cohere2": hf.Cohere2ForCausalLM(hf.Cohere2Config(**_SIZES, logit_scale=0.25)),
        "granite": hf.GraniteForCausalLM(hf.GraniteConfig(**_SIZES, logits_scaling=3.0)),
        "llama": hf.LlamaForCausalLM(hf.LlamaConfig(**_SIZES)),
    }


@torch.no_grad()
@pytest.mark.parametrize("name", ("gemma2", "cohere2", "granite", "llama"))
def test_the_head_and_its_logit_transform_give_the_targets_logits(name: str) -> None:
    model = models()[name].eval()
    parts, ids = take_apart(model), torch.tensor([[3, 9, 4, 11]])
    states = parts.decoder(input_ids=ids).last_hidden_state
    after = LogitTransform.of(parts)
    torch.testing.assert_close(after(parts.head(states)), model(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
    assert (after == LogitTransform()) == (name == "llama")
