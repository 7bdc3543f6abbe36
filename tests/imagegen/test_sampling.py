"""The order of filters: transformers' unless asked otherwise."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from mmspec.imagegen.target import Warp

LAW = torch.tensor([0.5, 0.22, 0.18, 0.1])  # its two best, scaled up, are 0.69 and 0.31


def kept(warp: Warp) -> list[bool]:
    return warp.apply(LAW.log()).isfinite().tolist()


def test_the_second_filter_reads_the_output_of_the_first_filter() -> None:
    assert kept(Warp(top_k=2, top_p=0.65)) == [True, False, False, False]
    assert kept(Warp(top_k=2, top_p=0.65, filter_order="top_p_first")) == [True, True, False, False]


@pytest.mark.parametrize("temperature, top_k, top_p", [(1.0, 5, 0.6), (0.7, 3, 0.9), (1.3, 12, 0.5)])
def test_the_default_filter_order_matches_transformers(temperature: float, top_k: int, top_p: float) -> None:
    scores = 2 * torch.randn(64, 20)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    config = GenerationConfig(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p)
    processors = model._get_logits_processor(config, input_ids_seq_length=1)
    expected = processors(torch.zeros(64, 1, dtype=torch.long), scores)
    assert torch.equal(Warp(temperature, top_k, top_p).apply(scores), expected)
    other = Warp(temperature, top_k, top_p, "top_p_first").apply(scores)
    assert not torch.equal(other, expected)
