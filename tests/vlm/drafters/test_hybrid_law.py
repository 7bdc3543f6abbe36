"""On a target with recurrent layers, sampled text has the target's law whatever form a draft has."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length import FixedLength
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from tests.vlm.drafters.test_vision_law import STEPS, V, p_value
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, liven

ROWS = 3000
PROMPT = torch.tensor([[1, 5, 2, 4, 3]])
TREE = StaticTree((0, 0, 0, 1, 1, 2))
CASES: dict[str, tuple[str, Shape]] = {
    "marginal chain": ("dflash", Chain(FixedLength(3))),
    "best tokens": ("dflash", Chain(FixedLength(3), "deterministic")),
    "walk": ("dflash2", Chain(FixedLength(3))),
    "corrected walk": ("dspark", Chain(FixedLength(3))),
    "siblings apart": ("dflash", TREE),
    "siblings shared": ("dflash", StaticTree(TREE.parents, shared=True)),
    "MTP chain": ("mtp", Chain(FixedLength(3))),
    "MTP tree": ("mtp", TREE),
    "MTP dynamic tree": ("mtp", DynamicTree(nodes=6, depth=3, width=3)),
}


@cache
def narrow() -> nn.Module:
    """Eight words; layers of gated delta rule and of attention in turn."""
    config = hf.Qwen3_5TextConfig(
        vocab_size=V, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_conv_kernel_dim=3, layer_types=["linear_attention", "full_attention"] * 2,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.Qwen3_5ForCausalLM(config).eval().requires_grad_(False)
        liven(model)
        model.lm_head.weight.mul_(0.1)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


@cache
def drafter_of(name: str) -> object:
    if name != "mtp":
        return make(name, vocab=V)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        mtp = Mtp(MtpConfig(HIDDEN, V), take_apart(narrow()))
        mtp.fc.weight.data[:, HIDDEN:].add_(torch.eye(HIDDEN))
    return mtp.eval().requires_grad_(False)


@cache
def exact_law() -> Tensor:
    joint, ids = torch.ones(1, dtype=torch.float64), PROMPT
    for _ in range(STEPS):
        p = narrow()(ids).logits[:, -1].double().softmax(-1)
        joint = (joint[:, None] * p).flatten()
        ids = torch.cat([ids.repeat_interleave(V, 0), torch.arange(V).repeat(len(ids))[:, None]], 1)
    return joint


@pytest.mark.parametrize("case", CASES)
def test_joint_law(case: str) -> None:
    name, shape = CASES[case]
    out = mmspec.generate(
        narrow(), input_ids=PROMPT.expand(ROWS, -1), drafter=drafter_of(name).with_shape(shape), seed=4,
        do_sample=True, max_new_tokens=STEPS + 2, top_k=0, return_dict=True,
    )  # fmt: skip
    tokens = out.sequences[:, PROMPT.shape[1] :][:, :STEPS]
    assert p_value(tokens, exact_law()) > 1e-3
    assert out.stats.accept_length > 1.05
