"""Sampled text has the target's law: the joint of the first three tokens, against every chance computed."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from scipy import stats
from torch import Tensor, nn
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

import mmspec
from mmspec.core.round.loop import Drafter
from mmspec.vlm.drafters import SmallModel
from tests.vlm.drafts import Bigram

V, STEPS, ROWS = 8, 3, 4000
PROMPT = torch.tensor([[1, 5, 2]])
TREES = {"tree": (0, 0, 0, 1, 1, 2), "chain": (0, 0, 1, 2)}
LAWS = {"t0.7": dict(temperature=0.7), "t1": dict(temperature=1.0), "t1_top_p0.9": dict(temperature=1.0, top_p=0.9)}


@cache
def narrow(noise: float = 0.0) -> nn.Module:
    """The target; with noise on its weights, a model that drafts for it."""
    config = hf.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(1)
    model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.6).add_(noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)))
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def exact_law(temperature: float, top_p: float = 1.0) -> Tensor:
    """float64 [V ** STEPS], the chance of every continuation."""
    joint, ids = torch.ones(1, dtype=torch.float64), PROMPT
    for _ in range(STEPS):
        scores = TemperatureLogitsWarper(temperature)(ids, narrow()(ids).logits[:, -1].float())
        scores = TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
        joint = (joint[:, None] * scores.double().softmax(-1)).flatten()
        ids = torch.cat([ids.repeat_interleave(V, 0), torch.arange(V).repeat(len(ids))[:, None]], 1)
    return joint


def drafter_of(name: str) -> Drafter | None:
    if name == "small":
        return SmallModel(narrow(0.2))
    table = 1.5 * torch.randn(V, V, generator=torch.Generator().manual_seed(3))
    return Bigram(table, TREES[name]) if name in TREES else None


def p_value(tokens: Tensor, law: Tensor) -> float:
    """Chi-square of the joint, rare cells pooled; 0 when something impossible occurred."""
    seen = torch.bincount(tokens[:, 0] * V * V + tokens[:, 1] * V + tokens[:, 2], minlength=V**STEPS).double()
    if (seen[law == 0] > 0).any():
        return 0.0
    common = law * len(tokens) >= 5
    seen, expected = (torch.cat([t[common], t[~common].sum()[None]]) for t in (seen, law * len(tokens)))
    expected, seen = expected[expected > 0], seen[expected > 0]
    return float(stats.chisquare(seen.numpy(), (expected * seen.sum() / expected.sum()).numpy()).pvalue)


def sample(drafter: Drafter | None, rule: str, settings: dict, rounds: int = 1) -> tuple[Tensor, float]:
    parts, lengths = [], []
    for seed in range(rounds):
        # longer than what is looked at, so that no draft is cut short by the end
        out = mmspec.generate(
            narrow(),
            input_ids=PROMPT.expand(ROWS, -1),
            drafter=drafter,
            rule=rule,
            seed=seed,
            do_sample=True,
            max_new_tokens=STEPS + 2,
            top_k=0,
            return_dict=True,
            **settings,
        )
        parts.append(out.sequences[:, 3 : 3 + STEPS])
        lengths.append(out.stats.accept_length)
    return torch.cat(parts), sum(lengths) / rounds


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("settings", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("plain", "exact", marks=pytest.mark.whole),
        ("chain", "exact"),
        ("tree", "exact"),
        pytest.param("small", "exact", marks=pytest.mark.whole),  # the drafters' own tests hold its law
        pytest.param("tree", "recursive", marks=pytest.mark.whole),
        ("tree", "match"),
    ],
)
def test_joint_distribution(name: str, rule: str, settings: dict) -> None:
    tokens, length = sample(drafter_of(name), rule, settings)
    assert p_value(tokens, exact_law(**settings)) > 1e-3
    assert (length > 1.1) == (name != "plain")


def test_another_distribution_is_detected() -> None:
    tokens, _ = sample(drafter_of("tree"), "exact", dict(temperature=0.85), rounds=1)
    assert p_value(tokens, exact_law(1.0)) < 1e-6
