"""The suite of real prompts: none of its text was used for training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmspec.evaluate.vlm.requests import REAL_COUNT, REAL_TASKS, evaluation_prompts, prompts_by_kind, real_prompts
from mmspec.run.vlm_requests import VlmPrompt
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS as KINDS
from mmspec.zoo.world.instructions import instruction

RUN, SEEDS = 8, range(1500)


def texts(prompt: object) -> Iterator[str]:
    yield prompt.text
    yield from (text for _, text in prompt.history)


def runs(text: str) -> set[tuple[str, ...]]:
    """All runs of RUN words, without punctuation and case."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def suite_prompts() -> list[VlmPrompt]:
    return [prompt for kind in KINDS for prompt in prompts_by_kind()[kind]]


def test_every_kind_has_its_prompts_and_no_prompt_repeats() -> None:
    assert prompts_by_kind().keys() == set(KINDS) and [task.name for task in REAL_TASKS] == list(KINDS)
    assert all(len(prompts_by_kind()[kind]) == REAL_COUNT for kind in KINDS)
    assert len({prompt.text for prompt in suite_prompts()}) == len(KINDS) * REAL_COUNT
    for kind in KINDS:
        assert all(bool(prompt.history) == (kind == "second_turn") for prompt in prompts_by_kind()[kind])
    for prompt in prompts_by_kind()["second_turn"]:
        assert [role for role, _ in prompt.history] == ["user", "assistant"]


def test_no_prompt_shares_a_run_of_words_with_those_of_training() -> None:
    generated = [text for seed in SEEDS for text in texts(instruction(seed))]
    trained = set().union(*map(runs, generated))
    whole = set(generated)
    for prompt in suite_prompts():
        for text in texts(prompt):
            assert text not in whole
            assert not (shared := runs(text) & trained), (text[:60], next(iter(shared)))


def test_a_shared_run_would_be_noticed() -> None:
    text = instruction(3, "summary").text
    assert runs("Somebody wrote: " + text) & runs(text)


def test_more_prompts_than_there_are_are_refused() -> None:
    assert len(real_prompts(3, kind="chat")) == 3
    for count in (0, REAL_COUNT + 1):
        with pytest.raises(ValueError, match=f"--prompts: expected 1 to {REAL_COUNT} of a kind, got {count}"):
            real_prompts(count, kind="chat")


def test_prompts_of_sweeps_take_turns_over_the_kinds() -> None:
    first = evaluation_prompts(len(KINDS))
    assert [prompt.category for prompt in first] == list(KINDS)
    assert len({prompt.key for prompt in evaluation_prompts(1000)}) == len(KINDS) * REAL_COUNT
    (second,) = (prompt for prompt in first if prompt.category == "second_turn")
    assert len(second.turns) == 2
