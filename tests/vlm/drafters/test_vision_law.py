"""Sampled text behind a picture has the target's law whichever trained drafter drafts: the joint of three tokens."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import transformers as hf
from scipy import stats
from torch import Tensor, nn
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

import mmspec
from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length.controls import FixedLength
from tests.vlm.drafters.trained import DRAFTERS, VARIANTS, make
from tests.vlm.tiny import HIDDEN, liven

V, STEPS, ROWS = 8, 3, 2000
PLACEHOLDER = 7  # also a word of the target's, which no drafter may propose
PROMPT = torch.tensor([[1, *[PLACEHOLDER] * 4, 5, 2]])
SHAPES = {"tree": (StaticTree((0, 0, 0, 1, 1, 2)), "traversal"), "chain": (Chain(FixedLength(3)), "block")}
LAWS = {"t0.7": dict(temperature=0.7), "t1": dict(temperature=1.0), "t1_top_p0.9": dict(temperature=1.0, top_p=0.9)}
FULLY = ("msd", "vispec")  # the law of the others' drafts is made by the same steps
TWO = (("tree", "t1_top_p0.9"), ("chain", "t0.7"))
CASES = [
    (name, *TWO[n % 2]) for n, name in enumerate(DRAFTERS) if name not in VARIANTS
]  # of the default lane: a law a kind
WHOLE = [(name, *TWO[n]) for name in DRAFTERS for n in range(2) if (name, *TWO[n]) not in CASES]
WHOLE += [(name, s, law) for name in FULLY for s in SHAPES for law in LAWS if (name, s, law) not in CASES + WHOLE]


@cache
def narrow() -> nn.Module:
    """A LLaVA of eight words."""
    text = hf.LlamaConfig(
        vocab_size=V,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    tower = hf.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
        projection_dim=8,
    )
    config = hf.LlavaConfig(vision_config=tower, text_config=text, image_token_id=PLACEHOLDER, vision_feature_layer=-1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = hf.LlavaForConditionalGeneration(config).eval().requires_grad_(False)
        liven(model)
        model.lm_head.weight.mul_(0.1)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model


def pictures(rows: int) -> Tensor:
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(2)).expand(rows, -1, -1, -1)


@cache
def exact_law(temperature: float, top_p: float = 1.0) -> Tensor:
    """float64 [V ** STEPS], the chance of every continuation."""
    joint, drawn, model = torch.ones(1, dtype=torch.float64), torch.zeros(1, 0, dtype=torch.long), narrow()
    base = model.model(PROMPT, pixel_values=pictures(1), output_hidden_states=True).hidden_states[0]
    for _ in range(STEPS):
        # embeddings of the prompt with its picture, so that drawn placeholders stay words
        embeds = torch.cat([base.expand(len(drawn), -1, -1), model.get_input_embeddings()(drawn)], 1)
        scores = model.lm_head(model.model.language_model(inputs_embeds=embeds).last_hidden_state[:, -1]).float()
        scores = TemperatureLogitsWarper(temperature)(drawn, scores)
        scores = TopPLogitsWarper(top_p)(drawn, scores) if top_p < 1 else scores
        joint = (joint[:, None] * scores.double().softmax(-1)).flatten()
        drawn = torch.cat([drawn.repeat_interleave(V, 0), torch.arange(V).repeat(len(drawn))[:, None]], 1)
    return joint


def p_value(tokens: Tensor, law: Tensor) -> float:
    """Chi-square of the joint, rare cells pooled; 0 when something impossible occurred."""
    seen = torch.bincount(tokens[:, 0] * V * V + tokens[:, 1] * V + tokens[:, 2], minlength=V**STEPS).double()
    if (seen[law == 0] > 0).any():
        return 0.0
    common = law * len(tokens) >= 5
    seen, expected = (torch.cat([t[common], t[~common].sum()[None]]) for t in (seen, law * len(tokens)))
    expected, seen = expected[expected > 0], seen[expected > 0]
    return float(stats.chisquare(seen.numpy(), (expected * seen.sum() / expected.sum()).numpy()).pvalue)


def sample(name: str | None, shape: str, settings: dict) -> tuple[Tensor, float]:
    form, rule = SHAPES[shape]
    drafter = None if name is None else make(name, vocab=V).with_shape(form)
    # longer than what is looked at, so that no draft is cut short by the end
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(ROWS, -1),
        pixel_values=pictures(ROWS),
        drafter=drafter,
        seed=4,
        rule="exact" if name is None else rule,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        return_dict=True,
        **settings,
    )
    return out.sequences[:, PROMPT.shape[1] :][:, :STEPS], out.stats.accept_length


@pytest.mark.parametrize(
    "name, shape, law", [*CASES, *(pytest.param(*case, marks=pytest.mark.whole) for case in WHOLE)]
)
def test_joint_distribution(name: str, shape: str, law: str) -> None:
    tokens, length = sample(name, shape, LAWS[law])
    assert p_value(tokens, exact_law(**LAWS[law])) > 1e-3
    assert length > 1.05


def test_plain_sampling_passes_and_another_distribution_is_detected() -> None:
    tokens, _ = sample(None, "tree", LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) > 1e-3
    assert p_value(tokens, exact_law(0.7)) < 1e-6
