"""What no captured round serves is answered by the ordinary loop, and one warning says why."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList, TemperatureLogitsWarper
from transformers.generation.stopping_criteria import StoppingCriteria

import mmspec
from mmspec.core.length.controls import ConfidenceStop
from mmspec.core.round.rules import TargetMatch
from mmspec.vlm.drafters import Chain, PromptLookup
from mmspec.vlm.processors.nodes import CONTEXT_FREE
from tests.vlm.drafters.trained import DRAFTERS
from tests.vlm.graphs.cases import GREEDY, WARM, chain, narrow, rows
from tests.vlm.tiny import prompt, tiny


class Never(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Peeking(TemperatureLogitsWarper):
    """Looks at a number of a tensor, which changes nothing of what it returns."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores if float(scores.amax()) > 0 else scores * 1.0


class Counting(TemperatureLogitsWarper):
    """Does a step more in some calls."""

    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores + 0.0 if self.calls % 3 else scores


class PeekingRule(TargetMatch):
    """Asks whether any threshold is 0, and does nothing about it."""

    def weigh(self, evidence, draft):
        weights = super().weigh(evidence, draft)
        weights.threshold.eq(0).any().item()
        return weights


def processors(one: object) -> dict:
    return dict(logits_processor=LogitsProcessorList([one]))


REFUSED = {
    "prefix": (dict(repetition_penalty=1.2), "do not read the prefix"),
    "own_processor": (processors(Peeking(1.0)), "do not read the prefix"),
    "criteria": (dict(stopping_criteria=StoppingCriteriaList([Never()])), "other stopping criteria"),
    "strict": (dict(strict=True), "strict passes"),
    "scores": (dict(return_dict_in_generate=True, output_scores=True), "scores of every step"),
    "peeking": (processors(Peeking(1.0)), "without host reads"),
    "counting": (processors(Counting(1.0)), "of the same steps"),
    "rule": (dict(rule=PeekingRule()), "without host reads"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_ordinary_loop_answers_and_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, why = REFUSED[name]
    if name in ("peeking", "counting"):  # as if transformers had such classes
        monkeypatch.setattr("mmspec.vlm.processors.nodes.CONTEXT_FREE", (*CONTEXT_FREE, Peeking, Counting))
    asked = dict(drafter=chain(kind="narrow"), max_new_tokens=10, **WARM, **rows(2)) | settings
    said_and_same(narrow(), asked, why)


def said_and_same(model, asked: dict, why: str) -> None:
    ordinary = mmspec.generate(model, **{"return_dict": True, **asked})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured = mmspec.generate(model, capture=True, **{"return_dict": True, **asked})
    told = [str(one.message) for one in said if str(one.message).startswith("capture: ")]
    assert len(told) == 1 and why in told[0] and "the ordinary loop runs instead" in told[0]
    assert torch.equal(ordinary.sequences, captured.sequences) and ordinary.stats.accepted == captured.stats.accepted


def test_a_draft_whose_length_is_decided_while_it_grows() -> None:
    drafter = chain(kind="narrow").with_shape(Chain(ConfidenceStop(0.3, 4)))
    said_and_same(narrow(), dict(drafter=drafter, max_new_tokens=10, **WARM, **rows(2)), "drafts of a fixed length")


@pytest.mark.parametrize("name", ("lookup", "medusa", "flash", "dflash"))
def test_drafters_that_keep_part_of_a_round_on_the_host(name: str) -> None:
    drafter = PromptLookup() if name == "lookup" else DRAFTERS[name]()
    asked = dict(drafter=drafter, max_new_tokens=8, **GREEDY, **prompt("llava", images=1))
    said_and_same(tiny("llava"), asked, "no drafter, or a drafter of fixed shape")


@pytest.mark.parametrize("capture", ("yes", 1, None))
def test_invalid_capture_values_are_refused(capture: object) -> None:
    with pytest.raises(ValueError, match="capture: expected True, False or Rounds, got"):
        mmspec.generate(narrow(), capture=capture, max_new_tokens=2, **GREEDY, **rows(1))
