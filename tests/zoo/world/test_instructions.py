"""Generated instructions: pure functions of a seed, of every kind, and requests sorted for batches."""

from __future__ import annotations

import pytest

from mmspec.zoo.training.vlm.drafter_requests import InstructionRequests, held_out_instructions
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, instruction


@pytest.mark.parametrize("kind", INSTRUCTION_KINDS)
def test_an_instruction_is_a_function_of_its_seed(kind: str) -> None:
    made = [instruction(seed, kind) for seed in range(40)]
    assert made == [instruction(seed, kind) for seed in range(40)]
    assert all(entry.kind == kind and entry.text.strip() for entry in made)
    assert len({(entry.text, entry.history) for entry in made}) > 12
    assert all(bool(entry.history) == (kind == "second_turn") for entry in made)
    assert all([role for role, _ in entry.history] == ["user", "assistant"] for entry in made if entry.history)
    assert not any("{n}" in entry.text or ("{}" in entry.text and "```" not in entry.text) for entry in made)


def test_every_kind_is_drawn() -> None:
    assert {instruction(seed).kind for seed in range(200)} == set(INSTRUCTION_KINDS)


def test_requests_are_distinct_and_sorted_within_windows() -> None:
    requests = InstructionRequests(700)
    made = [requests[i] for i in range(len(requests))]
    assert len({(entry.text, entry.history) for entry in made}) == len({entry.key for entry in made}) == 700
    sizes = [len(entry.text) + sum(len(text) for _, text in entry.history) for entry in made]
    assert sizes[:512] == sorted(sizes[:512]) and sizes[512:] == sorted(sizes[512:]) and sizes != sorted(sizes)


def test_held_out_requests_are_of_other_seeds() -> None:
    requests, held = InstructionRequests(3000), held_out_instructions(24)
    trained = {requests[i].key for i in range(3000)}
    assert not trained & {held[i].key for i in range(24)}
