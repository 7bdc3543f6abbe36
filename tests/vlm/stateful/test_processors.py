"""Logits processors that keep state give the text of `transformers.generate`, along any draft, or are refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, SynthIDTextWatermarkingConfig, TemperatureLogitsWarper

import mmspec
from mmspec.core.round.loop import Drafter
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.stateful import manners
from tests.vlm.tiny import VOCAB, prompt, tiny

STEPS = 16
MADE: dict[str, Callable] = {
    "counter": manners.Counter,
    "list_a_row": manners.SeenInRow,
    "grammar": manners.Grammar,
    "replayed": manners.ReplayedGrammar,
    "trigger": lambda: manners.TriggerPhrase(triggers()),
    "same_request": manners.SameRequest,
    "watermark": lambda: SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3).construct_processor(VOCAB, "cpu"),
}


@cache
def triggers() -> tuple[int, int]:
    """Tokens that the model gives the first row at its fourth step, and the second at its seventh."""
    plain = continuation(
        tiny("llama").generate(**inputs_of(2), max_new_tokens=STEPS), inputs_of(2)["input_ids"].shape[1]
    )
    return plain[0][3], plain[1][6]


def inputs_of(batch: int, seed: int = 4) -> dict[str, Tensor]:
    """A ragged, left padded batch of the tiny model."""
    inputs = prompt("llama", batch=max(batch, 2), seed=seed)
    return {name: value[:batch] for name, value in inputs.items()}


def drafter_of(name: str | None, truth: list[list[int]]) -> Drafter | None:
    if name is None:
        return None
    return mmspec.drafters.PromptLookup() if name == "lookup" else Scripted(truth, name)


def both(made: Callable, inputs: dict[str, Tensor], name: str | None, **settings) -> tuple:
    """The processor behind transformers, that behind ours, and our result, which is asserted to be the same text."""
    settings = dict(max_new_tokens=STEPS, do_sample=False) | settings
    theirs, ours = made(), made()
    expected = tiny("llama").generate(**inputs, **settings, logits_processor=LogitsProcessorList([theirs]))
    drafter = drafter_of(name, continuation(expected, inputs["input_ids"].shape[1]))
    result = mmspec.generate(
        tiny("llama"),
        drafter=drafter,
        return_dict=True,
        **inputs,
        **settings,
        logits_processor=LogitsProcessorList([ours]),
    )
    assert result.sequences.tolist() == expected.tolist()
    return theirs, ours, result


@pytest.mark.covering
@pytest.mark.parametrize("name", (None, "chain", "static", "dynamic"))
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("kind", MADE)
def test_the_text_is_that_of_transformers(kind: str, batch: int, name: str | None) -> None:
    theirs, ours, result = both(MADE[kind], inputs_of(batch), name)
    assert result.stats.accept_length > 1.3 or name is None
    if kind not in ("grammar", "replayed", "watermark"):
        assert repr(vars(ours)) == repr(vars(theirs))  # the caller's object is left as transformers leaves it


def test_the_trigger_is_met() -> None:
    """The cases above force phrases in both rows, at different steps."""
    tokens = both(MADE["trigger"], inputs_of(2), None)[2].sequences[:, -STEPS:].tolist()
    assert all([41, 42, 43] == row[row.index(41) :][:3] for row in tokens) and tokens[0].index(42) != tokens[1].index(
        42
    )


@pytest.mark.parametrize("name", (None, "static"))
def test_rows_that_end_before_others(name: str | None) -> None:
    plain = both(manners.SeenInRow, inputs_of(2), None)[2].sequences
    both(manners.SeenInRow, inputs_of(2), name, eos_token_id=int(plain[1, -10]))


@pytest.mark.parametrize("name", (None, "chain"))
def test_a_second_call_with_the_same_object_goes_on_from_its_state(name: str | None) -> None:
    theirs, ours, result = both(manners.Counter, inputs_of(1), name)
    assert theirs.calls == ours.calls == STEPS
    settings = dict(inputs_of(1), max_new_tokens=STEPS)
    expected = tiny("llama").generate(**settings, logits_processor=LogitsProcessorList([theirs]))
    again = mmspec.generate(tiny("llama"), **settings, logits_processor=LogitsProcessorList([ours]))
    assert torch.equal(again, expected) and not torch.equal(again, result.sequences)


def test_among_transformers_own_in_their_order() -> None:
    settings = dict(repetition_penalty=1.2, no_repeat_ngram_size=2)
    assert both(manners.SeenInRow, inputs_of(2), "static", **settings)[2].stats.accept_length > 1.3


def test_a_subclass_of_a_trusted_class_is_not_trusted() -> None:
    class Cooling(TemperatureLogitsWarper):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.temperature += 1
            return scores + manners.waves(scores, self.temperature % 3)

    both(lambda: Cooling(1.0), inputs_of(1), "static")


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("name", (None, "static"))
def test_guidance_whose_processor_runs_the_model(name: str | None, batch: int) -> None:
    inputs = inputs_of(batch)
    expected = tiny("llama").generate(**inputs, max_new_tokens=8, guidance_scale=1.7)
    drafter = drafter_of(name, continuation(expected, inputs["input_ids"].shape[1]))
    assert torch.equal(
        mmspec.generate(tiny("llama"), drafter=drafter, **inputs, max_new_tokens=8, guidance_scale=1.7), expected
    )


@pytest.mark.parametrize("drafter", (None, "lookup"))
@pytest.mark.parametrize(
    ("made", "batch", "match"),
    [(manners.closure, 1, "state"), (manners.Pooled, 2, "rows that do not depend on one another.*one by one")],
    ids=["closure", "pooled"],
)
def test_others_are_refused_at_the_start(made: Callable, batch: int, match: str, drafter: str | None) -> None:
    model, passes = tiny("llama"), []
    handle = model.register_forward_hook(lambda *args: passes.append(1))
    processor = made()
    before = repr(vars(processor))
    try:
        with pytest.raises(ValueError, match=f"^logits_processor: expected .*{match}.* decode with"):
            mmspec.generate(
                model,
                drafter=drafter_of(drafter, []),
                **inputs_of(batch),
                max_new_tokens=4,
                logits_processor=LogitsProcessorList([processor]),
            )
    finally:
        handle.remove()
    assert not passes and repr(vars(processor)) == before


def test_mutually_dependent_rows_are_served_alone() -> None:
    assert both(manners.Pooled, inputs_of(1), "static")[2].stats.accept_length > 1.3


def test_state_that_the_proof_does_not_meet_is_followed_in_a_row_alone() -> None:
    inputs = inputs_of(1)
    _, ours, _ = both(lambda: manners.Hidden(inputs["input_ids"].shape[1]), inputs, "static", max_new_tokens=30)
    assert ours.on


def test_rows_that_become_mutually_dependent_later_are_an_error() -> None:
    inputs = inputs_of(2)
    hidden = manners.Hidden(inputs["input_ids"].shape[1])
    with pytest.raises(ValueError, match="logits_processor: expected .*Hidden.* row"):
        mmspec.generate(
            tiny("llama"),
            **inputs,
            max_new_tokens=30,
            drafter=mmspec.drafters.PromptLookup(),
            logits_processor=LogitsProcessorList([hidden]),
        )
