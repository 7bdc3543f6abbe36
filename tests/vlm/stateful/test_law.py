"""Sampled text under processors that keep state has the law of plain sampling."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import mmspec
from tests.vlm.stateful import manners
from tests.vlm.test_sampled_law import PROMPT, STEPS, V, drafter_of, narrow, p_value

ROWS, CALLS = 50, 10  # rows of one call


class Seldom(LogitsProcessor):
    """Makes tokens that a row was given before less likely, in odd rows more so, and adds a pattern of its calls."""

    def __init__(self) -> None:
        self.seen, self.calls = None, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.seen is None:
            self.seen = torch.zeros_like(scores)
        self.calls += 1
        self.seen = self.seen.scatter_add(1, input_ids[:, -1:], torch.ones(len(scores), 1))
        strength = torch.where(torch.arange(len(scores)) % 2 == 1, 2.0, 0.5)
        return scores - strength[:, None] * self.seen + manners.waves(scores, self.calls) / 8


KINDS = {"seldom": Seldom, "grammar": lambda: manners.Grammar(2), "replayed": lambda: manners.ReplayedGrammar(2)}


def sample(made: Callable, name: str, rows: int, seed: int, **settings) -> mmspec.vlm.output.Generated:
    return mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        drafter=drafter_of(name),
        do_sample=True,
        top_k=0,
        seed=seed,
        max_new_tokens=STEPS + 2,
        return_dict=True,
        logits_processor=LogitsProcessorList([made()]),
        **settings,
    )


def exact_law() -> Tensor:
    """float64 [2, V ** STEPS], the chance of every continuation of an even and of an odd row."""
    paths = torch.tensor(list(product(range(V), repeat=STEPS))).repeat_interleave(2, 0)
    processor, ids, chance = Seldom(), PROMPT.expand(len(paths), -1), torch.ones(len(paths), dtype=torch.float64)
    for step in range(STEPS):
        scores = processor(ids, narrow()(ids).logits[:, -1].float())
        chance *= scores.double().softmax(-1).gather(1, paths[:, step, None])[:, 0]
        ids = torch.cat([ids, paths[:, step, None]], 1)
    return chance.view(-1, 2).T


@pytest.mark.default_cells("chain")
@pytest.mark.parametrize("name", ("chain", "tree"))
def test_joint_distribution_of_even_and_odd_rows(name: str) -> None:
    calls = [sample(Seldom, name, ROWS, seed) for seed in range(CALLS)]
    tokens = torch.cat([call.sequences[:, 3 : 3 + STEPS] for call in calls])
    for parity, law in enumerate(exact_law()):
        assert p_value(tokens[parity::2], law) > 1e-3
    assert min(p_value(tokens[::2], exact_law()[1]), p_value(tokens[1::2], exact_law()[0])) < 1e-3
    assert min(call.stats.accept_length for call in calls) > 1.1


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ("chain", "tree", "small"))
@pytest.mark.parametrize("kind", KINDS)
def test_scores_match_plain_steps_along_the_drawn_tokens(kind: str, name: str) -> None:
    """Of three rows at once, with every draw of the run as given."""
    for seed in range(3):
        out = sample(KINDS[kind], name, 3, seed, return_dict_in_generate=True, output_scores=True)
        processor = KINDS[kind]()
        for step, scores in enumerate(out.scores):
            ids = out.sequences[:, : 3 + step]
            expected = processor(ids, narrow()(ids).logits[:, -1].float())
            assert torch.allclose(scores, expected, atol=1e-4)
