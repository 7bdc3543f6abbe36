"""On a target with recurrent layers, sampled text has the target's law whatever form a draft has."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.mtp import Mtp, MtpConfig
from tests.vlm.drafters.mutants import best_on_record_as_drawn, evenly_on_record
from tests.vlm.drafters.test_vision_law import STEPS, V, p_value
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import HIDDEN, liven

ROWS = 1500
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
        vocab_size=V,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=3,
        layer_types=["linear_attention", "full_attention"] * 2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
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


def drawn(case: str) -> tuple[Tensor, float]:
    name, shape = CASES[case]
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(ROWS, -1),
        drafter=drafter_of(name).with_shape(shape),
        seed=4,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
    )
    return out.sequences[:, PROMPT.shape[1] :][:, :STEPS], out.stats.accept_length


@pytest.mark.default_cells("MTP tree")  # the blocks' laws stand beside on targets without recurrent layers
@pytest.mark.parametrize("case", CASES)
def test_joint_distribution(case: str) -> None:
    tokens, length = drawn(case)
    assert p_value(tokens, exact_law()) > 1e-3
    assert length > 1.05


@pytest.mark.default_cells("MTP tree-evenly_on_record")
@pytest.mark.parametrize("case, mutant", (("MTP chain", best_on_record_as_drawn), ("MTP tree", evenly_on_record)))
def test_another_distribution_on_record_is_detected(case: str, mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert p_value(drawn(case)[0], exact_law()) < 1e-6


def ragged() -> dict[str, Tensor]:
    ids = torch.randint(1, V, (4, 9), generator=torch.Generator().manual_seed(4))  # 0 would be taken for padding
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 4, 2, 6)):
        ids[row, :padding] = mask[row, :padding] = 0
    return dict(input_ids=ids, attention_mask=mask)


@pytest.mark.default_cells("walk", "MTP dynamic tree")
@pytest.mark.parametrize("case", ("best tokens", "walk", "siblings apart", "MTP dynamic tree"))
def test_words_are_the_targets_and_rows_do_not_touch_each_other(case: str) -> None:
    name, shape = CASES[case]
    drafter, inputs = drafter_of(name).with_shape(shape), ragged()
    words = narrow().generate(**inputs, max_new_tokens=12, do_sample=False)
    assert torch.equal(mmspec.generate(narrow(), drafter=drafter, **inputs, max_new_tokens=12, do_sample=False), words)
    for way in (dict(do_sample=False), dict(do_sample=True, top_k=0)):
        options = dict(way, max_new_tokens=8, drafter=drafter)
        together = mmspec.generate(narrow(), seed=[5, 6, 7, 8], **inputs, **options)
        for row, padding in enumerate((0, 4, 2, 6)):
            ids = inputs["input_ids"][row : row + 1, padding:]
            alone = mmspec.generate(narrow(), seed=[5 + row], input_ids=ids, **options)
            assert torch.equal(alone[0, -8:], together[row, -8:])
