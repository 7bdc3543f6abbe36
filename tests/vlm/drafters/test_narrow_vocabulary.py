"""Trees and searches that are wider than the vocabulary draft the values that exist."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.vlm.drafters import BestFirst, Cascade, PromptLookup, SmallModel, Stand, TokenRecycling
from tests.vlm.drafters.trained import DRAFTERS, make
from tests.vlm.tiny import HIDDEN

WORDS = 4
# a shape of greedy requests, and one of sampled requests
SHAPES = {
    "static": (DynamicTree(9, 3, 6), StaticTree((0,) * 8 + (1,) * 6 + (8,))),
    "replaced": (DynamicTree(81, 2, 9), StaticTree((0,) * 8 + (1,) * 6 + (8,), drawn="with_replacement")),
    "best first": (DynamicTree(9, 3, 6), BestFirst(24, 3, 9)),
}
FREE = {
    "lookup": PromptLookup,
    "recycling": TokenRecycling,
    "stand": Stand,
    "small": lambda: SmallModel(model(1)),
    "cascade": lambda: Cascade(model(1), TokenRecycling()),
}
IDS = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 0]])


@cache
def model(layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(layers)
    config = hf.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return hf.LlamaForCausalLM(config).eval()


def check(drafter: object) -> None:
    plain = model().generate(IDS, max_new_tokens=12, do_sample=False)
    assert torch.equal(
        mmspec.generate(model(), input_ids=IDS, drafter=drafter, max_new_tokens=12, do_sample=False), plain
    )
    sampled = dict(input_ids=IDS, max_new_tokens=12, do_sample=True, top_k=9, seed=2)
    assert mmspec.generate(model(), drafter=drafter, **sampled).max() < WORDS


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "dflash2"])  # its config refuses such a search
def test_trees_wider_than_the_vocabulary(name: str, shape: str) -> None:
    check(make(name, WORDS).with_shape(*SHAPES[shape]))


@pytest.mark.parametrize("name", FREE)
def test_drafters_without_training_over_few_words(name: str) -> None:
    check(FREE[name]())
