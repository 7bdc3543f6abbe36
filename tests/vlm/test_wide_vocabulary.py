"""Memory over a wide vocabulary: what a round of a sampled tree allocates, and that no head is copied."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from torch.utils._python_dispatch import TorchDispatchMode

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree, likeliest_tree
from mmspec.vlm.drafters.drafter_names import new_drafter

VOCAB, HIDDEN, REDUCED, NODES = 50000, 24, 1000, 25
TREE = StaticTree(likeliest_tree(NODES, 5, (0.6, 0.15, 0.08, 0.04)))


@cache
def model(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return hf.LlamaForCausalLM(config).to(dtype).eval()


class Allocations(TorchDispatchMode):
    """Counts the numbers in new tensors as wide as the vocabulary, and the new tensors with a row a token, as the head has."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.heads = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        out = func(*args, **(kwargs or {}))
        known = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for one in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(one, torch.Tensor) or not one.numel() or one.untyped_storage().data_ptr() in known:
                continue
            if one.shape[-1:] == (VOCAB,):
                self.wide += one.numel() if one.dtype != torch.bool else 0
            self.heads += VOCAB in one.shape and HIDDEN in one.shape
        return out


def one_round(shape: object, dtype: torch.dtype, batch: int, **settings: object) -> Allocations:
    """The allocations of the third round of a request with an EAGLE-3 drafter of a reduced vocabulary."""
    target = model(dtype)
    drafter = new_drafter("eagle3", target, draft_vocab_size=REDUCED).to(dtype).with_shape(shape)
    prompt = torch.arange(5, 5 + 8 * batch).view(batch, 8)
    run = mmspec.vlm.start(target, drafter=drafter, seed=0, input_ids=prompt, max_new_tokens=40, **settings)
    run.step()
    run.step()
    with Allocations() as found:
        run.step()
    assert run.stats.drafter_passes > 1
    return found


SAMPLED = dict(do_sample=True, temperature=1.0, top_k=0)
WAYS = {
    "greedy": (DynamicTree(NODES - 1, 5, 4), {}, 1.5),
    "sampled tree": (TREE, SAMPLED, 2.5),
    "sampled chain": (Chain(), SAMPLED, 3.5),
    "top-k and top-p": (TREE, dict(do_sample=True, temperature=0.8, top_k=50, top_p=0.9), 4.5),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("dtype", "batch"), [(torch.float32, 2), (torch.bfloat16, 1)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", WAYS)
def test_a_round_allocates_few_blocks_of_nodes_by_vocabulary(name: str, dtype: torch.dtype, batch: int) -> None:
    """Logits and the target's law are a block [B, N, V] each; processors make one each. A drafter of 1000 tokens adds none."""
    shape, settings, blocks = WAYS[name]
    nodes = shape.longest + 1 if isinstance(shape, Chain) else NODES
    found = one_round(shape, dtype, batch, **settings)
    conversion = dtype != torch.float32  # of the logits to float32
    assert found.wide <= (blocks + conversion) * batch * nodes * VOCAB
    assert found.heads == 0


def test_a_copy_of_the_head_is_noticed() -> None:
    head = model(torch.bfloat16).lm_head
    with Allocations() as found:
        head.weight.float()
    assert found.heads == 1
