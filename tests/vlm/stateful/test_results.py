"""Scores, logits and caches beside objects that keep state, in batches whose rows end apart: those of transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import mmspec
from tests.vlm.drafts import continuation
from tests.vlm.layer_kinds import model_with
from tests.vlm.stateful import manners
from tests.vlm.stateful.test_processors import drafter_of, inputs_of
from tests.vlm.test_returned_cache import alike
from tests.vlm.tiny import tiny

STEPS = 14
WANTS = dict(
    max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_scores=True, output_logits=True
)
CLOSE = dict(rtol=1e-4, atol=5e-4, equal_nan=True)


class EndsRow(StoppingCriteria):
    """Counts its calls, and ends a row at a call of its own."""

    def __init__(self, calls: dict[int, int]):
        self.calls, self.count = calls, 0

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs) -> torch.Tensor:
        self.count += 1
        return torch.tensor([self.count >= self.calls.get(row, STEPS) for row in range(len(input_ids))])


def same(
    settings: dict, truth: list[list[int]], name: str | None, *, own: Callable[[], dict], raw: bool = True
) -> None:
    """Asserts that sequences, scores, keys and, with `raw`, logits are those of transformers."""
    inputs = inputs_of(2)
    expected = tiny("llama").generate(**inputs, **settings, **own())
    out = mmspec.generate(tiny("llama"), drafter=drafter_of(name, truth), **inputs, **settings, **own())
    assert out.sequences.tolist() == expected.sequences.tolist()
    for ours, theirs in ((out.scores, expected.scores), (out.logits, expected.logits))[: 1 + raw]:
        assert len(ours) == len(theirs)
        torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), **CLOSE)
    alike(out.past_key_values, expected.past_key_values, inputs["attention_mask"] == 0)


@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("made", (manners.Counter, manners.SeenInRow), ids=("counter", "list_a_row"))
def test_scores_behind_the_end_of_a_row(made: Callable, name: str | None) -> None:
    inputs, own = inputs_of(2), lambda: dict(logits_processor=LogitsProcessorList([made()]))
    plain = tiny("llama").generate(**inputs, max_new_tokens=STEPS, do_sample=False, **own())
    truth = continuation(plain, inputs["input_ids"].shape[1])
    raw = made is not manners.SeenInRow  # which writes into what transformers keeps as its raw logits
    same(WANTS | dict(eos_token_id=truth[1][2], pad_token_id=2), truth, name, own=own, raw=raw)


@pytest.mark.parametrize("name", (None, "chain", "static"))
@pytest.mark.parametrize("ended", (0, 1))
def test_a_row_that_is_cut_back_where_a_criterion_ends_it(ended: int, name: str | None) -> None:
    inputs = inputs_of(2)
    plain = tiny("llama").generate(**inputs, max_new_tokens=STEPS, do_sample=False)
    truth = continuation(plain, inputs["input_ids"].shape[1])
    truth[1 - ended] = [
        token + 1 for token in truth[1 - ended]
    ]  # the drafts of the other row fall, so this row is ahead
    own = lambda: dict(stopping_criteria=StoppingCriteriaList([EndsRow({ended: 5})]))  # noqa: E731
    same(WANTS | dict(eos_token_id=59, pad_token_id=2), truth, name, own=own)


def test_a_row_with_recurrent_states_cannot_be_cut_back() -> None:
    criteria = StoppingCriteriaList([EndsRow({0: 3})])
    inputs = {"input_ids": torch.arange(5, 25).view(2, 10)}
    with pytest.raises(ValueError, match="stopping_criteria: .* recurrent"):
        mmspec.generate(model_with("Qwen3_5ForCausalLM"), **inputs, **WANTS, stopping_criteria=criteria)
