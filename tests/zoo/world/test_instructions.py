"""Generated instructions: pure functions of a seed, of every kind, and requests sorted for batches."""

from __future__ import annotations

import pytest

from mmspec.zoo.training.vlm.drafter_requests import InstructionRequests, held_out_instructions
from mmspec.zoo.world.instructions import INSTRUCTION_KINDS, instruction


@pytest.mark.parametrize("kind", INSTRUCTION_KINDS)
def test_an_instruction_is_a_function_of_its_seed(kind: str) -> None:
    made = [instruction(seed, kind) for seed in range(40)]
    assert made == [instruction(seed, kind) for seed in range(40)]
    assert all(one.kind == kind and one.text.strip() for one in made)
    assert len({(one.text, one.history) for one in made}) > 12
    assert all(bool(one.history) == (kind == "second_turn") for one in made)
    assert all([role for role, _ in one.history] == ["user", "assistant"] for one in made if one.history)
    assert not any("{n}" in one.text or ("{}" in one.text and "```" not in one.text) for one in made)


def test_every_kind_is_drawn() -> None:
    assert {instruction(seed).kind for seed in range(200)} == set(INSTRUCTION_KINDS)


def test_requests_are_distinct_and_sorted_within_windows() -> None:
    requests = InstructionRequests(700)
    made = [requests[i] for i in range(len(requests))]
    assert len({(one.text, one.history) for one in made}) == len({one.key for one in made}) == 700
    sizes = [len(one.text) + sum(len(text) for _, text in one.history) for one in made]
    assert sizes[:512] == sorted(sizes[:512]) and sizes[512:] == sorted(sizes[512:]) and sizes != sorted(sizes)


def test_held_out_requests_are_of_other_seeds() -> None:
    requests, held = InstructionRequests(3000), held_out_instructions(24)
    trained = {requests[i].key for i in range(3000)}
    assert not trained & {held[i].key for i in range(24)}
