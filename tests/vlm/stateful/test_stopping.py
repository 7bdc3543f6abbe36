"""Stopping criteria are called as `transformers.generate` calls them: once a step, with all rows in their order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

import mmspec
from tests.vlm.drafts import continuation
from tests.vlm.stateful import manners
from tests.vlm.stateful.test_processors import drafter_of
from tests.vlm.tiny import prompt, tiny

STEPS = 20
INPUTS = {batch: prompt("llama", batch=batch, seed=8) for batch in (1, 2, 4)}
NO_SCORES = {"counts": manners.Counts, "rows_behind": manners.RowsBehind}


class Watched(StoppingCriteria):
    """Notes what a criterion is called with."""

    def __init__(self, criterion: StoppingCriteria):
        self.criterion, self.calls = criterion, []

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> Tensor | bool:
        self.calls.append((input_ids.tolist(), None if scores is None else [len(scores), scores[-1].shape]))
        return self.criterion(input_ids, scores, **kwargs)


def both(made: Callable, batch: int, name: str | None, **settings) -> tuple[Watched, mmspec.vlm.output.Generated]:
    """Asserts that text and calls are those of transformers; returns our criterion and our result."""
    inputs = INPUTS[batch]
    settings = dict(max_new_tokens=STEPS, do_sample=False, eos_token_id=3) | settings
    theirs, ours = Watched(made()), Watched(made())
    truth = tiny("llama").generate(**inputs, max_new_tokens=STEPS)
    expected = tiny("llama").generate(**inputs, **settings, stopping_criteria=StoppingCriteriaList([theirs]))
    drafter = drafter_of(name, continuation(truth, inputs["input_ids"].shape[1]))
    result = mmspec.generate(
        tiny("llama"),
        drafter=drafter,
        return_dict=True,
        **inputs,
        **settings,
        stopping_criteria=StoppingCriteriaList([ours]),
    )
    expected = getattr(expected, "sequences", expected)
    assert result.sequences.tolist() == expected.tolist()
    assert ours.calls == theirs.calls
    return ours, result


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, "chain", "static", "lookup"))
@pytest.mark.parametrize("eos", (3, None))
@pytest.mark.parametrize("batch", (1, 2, 4))
@pytest.mark.parametrize("kind", NO_SCORES)
def test_state_and_rows_by_place(kind: str, batch: int, eos: int | None, name: str | None) -> None:
    _, result = both(NO_SCORES[kind], batch, name, eos_token_id=eos)
    assert min(result.stats.emitted) < STEPS or kind == "rows_behind"


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("eos", (3, None))
@pytest.mark.parametrize("batch", (1, 4))
def test_a_single_stop_decision_applies_to_all_rows(batch: int, eos: int | None, name: str | None) -> None:
    length = INPUTS[batch]["input_ids"].shape[1]
    both(lambda: manners.DoneRows(batch, length), batch, name, eos_token_id=eos)


@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("batch", (1, 2))
def test_scores_where_the_request_keeps_them(batch: int, name: str | None) -> None:
    kept = dict(return_dict_in_generate=True, output_scores=True)
    ours, result = both(manners.Unsure, batch, name, **kept)
    assert ours.criterion.steps == list(range(1, len(ours.calls) + 1))
    assert len(result.scores) == len(ours.calls)


def test_rows_that_an_eos_id_ends_are_shown_padded() -> None:
    plain = tiny("llama").generate(**INPUTS[2], max_new_tokens=STEPS)[:, -STEPS:].tolist()
    eos = next(token for token in plain[0][5:] if token not in plain[1] + plain[0][:5])
    ours, result = both(lambda: manners.Counts(50), 2, "static", eos_token_id=eos)
    assert len(ours.calls) == STEPS > result.stats.emitted[0]


def test_a_criterion_of_any_length_stops_within_a_run() -> None:
    for first in (1, 2, 6):
        _, result = both(lambda first=first: manners.Counts(first), 2, "chain")
        assert result.stats.emitted == [first, first + 3]


def test_a_criterion_object_is_left_as_transformers_leaves_it() -> None:
    ours, theirs = manners.Counts(7), manners.Counts(7)
    settings = dict(INPUTS[2], max_new_tokens=STEPS, eos_token_id=3)
    tiny("llama").generate(**settings, stopping_criteria=StoppingCriteriaList([theirs]))
    mmspec.generate(
        tiny("llama"),
        **settings,
        stopping_criteria=StoppingCriteriaList([ours]),
        drafter=mmspec.drafters.PromptLookup(),
    )
    assert ours.calls == theirs.calls == 10
