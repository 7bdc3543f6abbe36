"""Drafters propose what a request's logits processors allow, and the text keeps the law of plain sampling."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import mmspec
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.loop import Drafter
from mmspec.vlm.drafters import SmallModel
from mmspec.vlm.target import TextTarget
from tests.vlm.drafters.mutants import best_on_record_as_drawn, evenly_on_record
from tests.vlm.drafters.test_hybrid_law import CASES, PROMPT, ROWS, narrow, ragged
from tests.vlm.drafters.test_hybrid_law import drafter_of as trained
from tests.vlm.drafters.test_vision_law import STEPS, V, p_value
from tests.vlm.stateful.manners import Grammar
from tests.vlm.test_sampled_law import narrow as llama


class Neighbours(LogitsProcessor):
    """Allows only tokens whose sum with the last one leaves no rest when it is divided by 3."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rest = (input_ids[:, -1:] + torch.arange(scores.shape[1])) % 3
        return scores.masked_fill(rest != 0, -torch.inf)


# what the request says, and the same as a function of ids and scores
CONSTRAINTS: dict[str, tuple[Callable[[], dict], Callable[[Tensor, Tensor], Tensor]]] = {
    "custom": (lambda: dict(logits_processor=LogitsProcessorList([Neighbours()])), Neighbours()),
    "penalty": (
        lambda: dict(repetition_penalty=3.0),
        lambda ids, scores: torch.stack([penalised(row, own) for row, own in zip(ids, scores, strict=True)]),
    ),
}


def penalised(ids: Tensor, scores: Tensor) -> Tensor:
    """The scores [V] of a row, those of tokens that it holds divided by 3, or multiplied where they are negative."""
    seen = torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True)
    return torch.where(seen, torch.where(scores < 0, scores * 3.0, scores / 3.0), scores)


def drafter_of(case: str) -> Drafter:
    if case == "small model":
        return SmallModel(llama(0.2), FixedLength(3))
    name, shape = CASES[case]
    return trained(name).with_shape(shape)


@cache
def exact_law(constraint: str) -> Tensor:
    """float64 [V ** STEPS], the chance of every continuation."""
    joint, ids = torch.ones(1, dtype=torch.float64), PROMPT
    for _ in range(STEPS):
        scores = CONSTRAINTS[constraint][1](ids, narrow()(ids).logits[:, -1].float())
        joint = (joint[:, None] * scores.double().softmax(-1)).flatten()
        ids = torch.cat([ids.repeat_interleave(V, 0), torch.arange(V).repeat(len(ids))[:, None]], 1)
    return joint


def drawn(case: str, constraint: str, rows: int) -> tuple[Tensor, float]:
    """Tokens int64 [rows, STEPS] and the accept length."""
    out = mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        drafter=drafter_of(case),
        seed=4,
        do_sample=True,
        top_k=0,
        max_new_tokens=STEPS + 2,
        return_dict=True,
        **CONSTRAINTS[constraint][0](),
    )
    return out.sequences[:, PROMPT.shape[1] :][:, :STEPS], out.stats.accept_length


FORMS = ("marginal chain", "best tokens", "corrected walk", "siblings apart", "siblings shared", "MTP chain", "MTP tree",
         "MTP dynamic tree", "small model")  # fmt: skip


@pytest.mark.default_cells("custom-MTP tree", "penalty-corrected walk")
@pytest.mark.parametrize("case", FORMS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_joint_distribution(constraint: str, case: str) -> None:
    rows = 1500 if constraint == "penalty" else 400  # copies of a processor are called row by row
    tokens, length = drawn(case, constraint, rows)
    assert p_value(tokens, exact_law(constraint)) > 1e-3
    assert length > 1.05


@pytest.mark.whole
@pytest.mark.parametrize("case, mutant", (("MTP chain", best_on_record_as_drawn), ("MTP tree", evenly_on_record)))
def test_another_distribution_on_record_is_detected(
    case: str, mutant: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert p_value(drawn(case, "penalty", ROWS)[0], exact_law("penalty")) < 1e-6


@pytest.mark.default_cells("corrected walk", "MTP dynamic tree", "small model")
@pytest.mark.parametrize("case", FORMS)
def test_greedy_text_is_the_targets_in_fewer_passes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, limits = ragged(), dict(max_new_tokens=12, do_sample=False)

    def decoded() -> mmspec.vlm.output.Generated:
        processors = LogitsProcessorList([Neighbours()])
        return mmspec.generate(
            narrow(), drafter=drafter_of(case), return_dict=True, logits_processor=processors, **inputs, **limits
        )

    plain = narrow().generate(**inputs, **limits, logits_processor=LogitsProcessorList([Neighbours()]))
    guided = decoded()
    monkeypatch.setattr(TextTarget, "guide", lambda target: None)
    unguided = decoded()
    assert torch.equal(guided.sequences, plain) and torch.equal(unguided.sequences, plain)
    # siblings that all parents share have one law, which no processor of a path can change
    assert guided.stats.accept_length > unguided.stats.accept_length or case == "siblings shared"


@pytest.mark.parametrize("case", ("MTP tree", "small model"))
def test_a_grammar_that_fails_at_other_tokens(case: str) -> None:
    """Copies of the grammar raise for a token that it does not allow, so none may be shown one."""
    inputs, limits = dict(input_ids=PROMPT), dict(max_new_tokens=12, do_sample=False)
    plain = narrow().generate(**inputs, **limits, logits_processor=LogitsProcessorList([Grammar(2)]))
    out = mmspec.generate(
        narrow(), drafter=drafter_of(case), logits_processor=LogitsProcessorList([Grammar(2)]), **inputs, **limits
    )
    assert torch.equal(out, plain)
