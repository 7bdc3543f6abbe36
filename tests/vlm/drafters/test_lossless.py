"""Drafters that need no training change nothing but the speed."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.length.controls import ConfidenceStop
from mmspec.vlm.drafters import Cascade, PromptLookup, SmallModel, TokenRecycling
from tests.vlm.drafters.watched import noisy
from tests.vlm.tiny import prompt, tiny

DRAFTERS = {
    "lookup": lambda kind: PromptLookup(),
    "recycling": lambda kind: TokenRecycling(),
    "small": lambda kind: SmallModel(noisy(kind)),
    "text": lambda kind: SmallModel(noisy("llama"), ConfidenceStop(0.2)),
    "cascade": lambda kind: Cascade(noisy(kind), TokenRecycling(), run=2),
}
RULES = {
    "lookup": ("exact", "match"),
    "recycling": ("exact", "match"),
    "small": ("exact", "token", "block", "match"),
    "cascade": ("exact", "token"),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_greedy_words_are_those_of_transformers(drafter: str, kind: str) -> None:
    inputs = dict(prompt(kind, images=1, where="echo", batch=4), max_new_tokens=16)
    out = mmspec.generate(tiny(kind), drafter=DRAFTERS[drafter](kind), do_sample=False, **inputs)
    assert torch.equal(out, tiny(kind).generate(**inputs, do_sample=False))


@pytest.mark.parametrize("drafter", ("lookup", "recycling", "small", pytest.param("cascade", marks=pytest.mark.whole)))
def test_a_row_drafts_the_same_alone_and_in_a_batch(drafter: str) -> None:
    inputs = prompt("llama", batch=4)
    make, model = DRAFTERS[drafter], tiny("llama")
    options = dict(max_new_tokens=20, do_sample=True, top_k=6, temperature=0.8, return_dict=True)
    together = mmspec.generate(model, drafter=make("llama"), seed=[5, 6, 7, 8], **options, **inputs)
    for row in range(4):
        ids = inputs["input_ids"][row : row + 1, int((inputs["attention_mask"][row] == 0).sum()) :]
        alone = mmspec.generate(model, drafter=make("llama"), seed=[5 + row], input_ids=ids, **options)
        assert torch.equal(alone.sequences[0, -20:], together.sequences[row, -20:])
        in_batch = [line[row] for line in together.stats.accepted if line[row] is not None]
        assert in_batch == [line[0] for line in alone.stats.accepted]


def true_law(model, ids: torch.Tensor, steps: int, warp) -> dict[tuple[int, ...], float]:
    """The chance of every continuation of `steps` tokens."""
    law = {(): 1.0}
    for _ in range(steps):
        prefixes = torch.cat([ids.expand(len(law), -1), torch.tensor(list(law), dtype=torch.long)], 1)
        p = warp(None, model(input_ids=prefixes).logits[:, -1]).double().softmax(-1)
        law = {
            (*prefix, int(i)): chance * float(row[i])
            for (prefix, chance), row in zip(law.items(), p, strict=True)
            for i in row.nonzero()[:, 0]
        }
    return law


@pytest.mark.default_cells(
    "lookup-exact", "recycling-match", "small-block", "small-token", "text-exact", "cascade-exact"
)
@pytest.mark.parametrize("drafter, rule", [(d, r) for d, rules in RULES.items() for r in rules] + [("text", "exact")])
def test_sampled_words_have_the_targets_distribution(drafter: str, rule: str) -> None:
    model, rows = tiny("llama"), 1500
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 9, 5, 6, 7]])
    options = dict(max_new_tokens=4, do_sample=True, top_k=2, temperature=3.0)
    out = mmspec.generate(
        model, drafter=DRAFTERS[drafter]("llama"), rule=rule, seed=9, input_ids=ids.expand(rows, -1), **options
    )
    warp = hf.LogitsProcessorList([hf.TemperatureLogitsWarper(3.0), hf.TopKLogitsWarper(2)])
    law = true_law(model, ids, 4, warp)
    seen = Counter(map(tuple, out[:, ids.shape[1] :].tolist()))
    assert set(seen) <= set(law)
    expected = torch.tensor([law[k] * rows for k in law], dtype=torch.double)
    found = torch.tensor([seen[k] for k in law], dtype=torch.double)
    order = expected.argsort()
    cells = list(itertools.accumulate(expected[order].tolist()))
    small = sum(c < 8 for c in cells) + 1  # the rarest continuations share one cell
    expected, found = (torch.cat([x[order][:small].sum()[None], x[order][small:]]) for x in (expected, found))
    statistic, freedom = ((found - expected) ** 2 / expected).sum(), len(expected) - 1
    chance = 1 - torch.special.gammainc(torch.tensor(freedom / 2.0), statistic.float() / 2)
    assert freedom >= 6 and chance > 1e-4, f"chi-square {statistic:.1f} at {freedom} degrees, p {chance:.1e}"
