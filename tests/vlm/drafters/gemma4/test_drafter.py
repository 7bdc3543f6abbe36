"""A Gemma 4 assistant: the target's words and law, rows alone and in a batch, and what does not fit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from scipy import stats
from torch import Tensor
from transformers.generation.utils import _speculative_sampling

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters.gemma4 import Gemma4Assistant, Gemma4AssistantConfig
from tests.vlm.drafters.mutants import best_on_record_as_drawn, evenly_on_record
from tests.vlm.tiny import liven

V, STEPS, ROWS = 8, 3, 2500
PROMPT = torch.tensor([[1, 5, 2, 3, 3, 6, 2, 4, 1]])
TREE = (0, 0, 0, 1, 1, 2)
SHAPES: dict[str, Shape] = {
    "chain": Chain(FixedLength(3)),
    "best": Chain(FixedLength(3), "deterministic"),
    "tree": StaticTree(TREE),
    "dynamic": DynamicTree(nodes=6, depth=3, width=3),
}


@cache
def gemma(vocab: int = V, small: bool = True) -> hf.Gemma4ForCausalLM:
    """With a layer that shares keys and embeddings for each layer, as small models have, or without both."""
    config = hf.Gemma4TextConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_kv_shared_layers=int(small),
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=16,
        sliding_window=4,
        hidden_size_per_layer_input=4 * small,
        vocab_size_per_layer_input=vocab * small,
        final_logit_softcapping=None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = hf.Gemma4ForCausalLM(config).eval().requires_grad_(False)
        liven(model)
        model.get_input_embeddings().weight.mul_(0.3)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


@cache
def assistant(vocab: int = V, clusters: int = 0, **changed: object) -> Gemma4Assistant:
    config = Gemma4AssistantConfig(
        **dict(
            hidden_size=16,
            backbone_hidden_size=32,
            vocab_size=vocab,
            intermediate_size=24,
            num_attention_heads=2,
            layer_types=("sliding_attention", "full_attention"),
            head_dim=8,
            global_head_dim=16,
            sliding_window=4,
            clusters=clusters,
            clusters_read=2,
        )
        | changed
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        drafter = Gemma4Assistant(config)
        liven(drafter)
        drafter.embed_tokens.weight.data.mul_(0.3)
    return drafter.eval().requires_grad_(False)


def exact_law(steps: int = STEPS) -> Tensor:
    joint, ids = torch.ones(1, dtype=torch.float64), PROMPT
    for _ in range(steps):
        p = gemma()(ids).logits[:, -1].double().softmax(-1)
        joint = (joint[:, None] * p).flatten()
        ids = torch.cat([ids.repeat_interleave(V, 0), torch.arange(V).repeat(len(ids))[:, None]], 1)
    return joint


def p_value(seen: Tensor, law: Tensor) -> float:
    expected = law * seen.sum()
    common = expected >= 5
    seen, expected = (torch.cat([x[common], x[~common].sum()[None]]) for x in (seen.double(), expected))
    kept = expected > 0
    return float(
        stats.chisquare(seen[kept].numpy(), (expected[kept] * seen[kept].sum() / expected[kept].sum()).numpy()).pvalue
    )


def drawn(shape: str, clusters: int) -> tuple[Tensor, float]:
    """How often each continuation comes up, and the accept length."""
    drafter = assistant(clusters=clusters).with_shape(SHAPES[shape])
    out = mmspec.generate(
        gemma(),
        input_ids=PROMPT.expand(ROWS, -1),
        drafter=drafter,
        seed=3,
        do_sample=True,
        top_k=0,
        max_new_tokens=STEPS + 2,
        return_dict=True,
    )
    tokens = out.sequences[:, PROMPT.shape[1] :]
    cell = (tokens[:, 0] * V + tokens[:, 1]) * V + tokens[:, 2]
    return torch.bincount(cell, minlength=V**STEPS), out.stats.accept_length


@pytest.mark.default_cells("tree-4", "chain-0")
@pytest.mark.parametrize("shape, clusters", [*((shape, 0) for shape in SHAPES), ("chain", 4), ("tree", 4)])
def test_joint_distribution(shape: str, clusters: int) -> None:
    seen, length = drawn(shape, clusters)
    assert p_value(seen, exact_law()) > 1e-3
    assert length > 1.05


@pytest.mark.parametrize("shape, mutant", (("chain", best_on_record_as_drawn), ("tree", evenly_on_record)))
def test_another_distribution_on_record_is_detected(shape: str, mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert p_value(drawn(shape, 0)[0], exact_law()) < 1e-6


def test_argmax_drafts_judged_by_their_softmax_have_another_distribution() -> None:
    """What transformers' assisted generation does with an assistant's draft: the same test fails."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.6, 0.3, 0.1])
    logits = p.log().expand(1, 2, 3)
    emitted = torch.zeros(3)
    for _ in range(3000):
        draft = torch.cat([torch.zeros(1, 4, dtype=torch.long), q.argmax()[None, None]], 1)
        tokens, _ = _speculative_sampling(draft, q.log()[None, None], 1, logits, False)
        emitted[tokens[0, 0]] += 1
    assert p_value(emitted, p.double()) < 1e-6


@pytest.mark.parametrize("shape, small", [*((shape, True) for shape in SHAPES), ("tree", False)])
def test_greedy_words_are_the_targets_own_in_a_ragged_batch(shape: str, small: bool) -> None:
    model, rng = gemma(64, small), torch.Generator().manual_seed(2)
    ids = torch.randint(1, 64, (4, 13), generator=rng)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 5, 2, 9)):
        ids[row, :padding] = mask[row, :padding] = 0
    inputs = dict(input_ids=ids, attention_mask=mask, max_new_tokens=14, do_sample=False)
    out = mmspec.generate(model, drafter=assistant(64).with_shape(SHAPES[shape]), **inputs)
    assert torch.equal(out, model.generate(**inputs))


def test_a_prompt_of_one_token_drafts() -> None:
    inputs = dict(input_ids=torch.tensor([[7]]), max_new_tokens=8, do_sample=False)
    assert torch.equal(mmspec.generate(gemma(64), drafter=assistant(64), **inputs), gemma(64).generate(**inputs))


@pytest.mark.parametrize("way", (dict(do_sample=True, top_k=5), dict(do_sample=False)), ids=("sampled", "greedy"))
def test_a_row_drafts_the_same_alone_and_in_a_batch(way: dict) -> None:
    model, drafter = gemma(64), assistant(64)
    ids = torch.randint(1, 64, (2, 13), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    ids[1, :6] = mask[1, :6] = 0
    options = dict(way, max_new_tokens=10, return_dict=True)
    together = mmspec.generate(model, drafter=drafter, seed=[7, 8], input_ids=ids, attention_mask=mask, **options)
    alone = mmspec.generate(model, drafter=drafter, seed=[8], input_ids=ids[1:, 6:], **options)
    assert torch.equal(alone.sequences[0, -10:], together.sequences[1, -10:])


@pytest.mark.parametrize(
    "changed, message",
    (
        (dict(backbone_hidden_size=16), "expected backbone_hidden_size 32 as in the target, got 16"),
        (dict(vocab_size=16), "expected vocab_size 8 as in the target, got 16"),
        (dict(head_dim=4), "expected heads of size 8 in groups of 1"),
    ),
)
def test_an_assistant_of_another_target_is_refused(changed: dict, message: str) -> None:
    drafter = assistant(**({"vocab": changed.pop("vocab_size")} if "vocab_size" in changed else {}), **changed)
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.generate(gemma(), drafter=drafter, input_ids=PROMPT, max_new_tokens=6)
    assert "\n" not in str(caught.value)
