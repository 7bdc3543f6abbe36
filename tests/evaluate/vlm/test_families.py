"""The suite of families: answers to one picture in a row, memories that start after the warm-up, equal nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mmspec
from mmspec import drafters
from mmspec.evaluate.engine.observed_drafter import SharedMemory
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.families import _NODES, ANSWERS, FAMILIES, several_answers
from tests.evaluate.tiny_zoo import use_tiny_zoo
from tests.vlm.tiny import prompt, tiny


@pytest.fixture(autouse=True)
def tiny_zoo() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_zoo(patch)
        yield


def test_every_picture_is_asked_several_times_in_a_row() -> None:
    asked = several_answers(2 * ANSWERS + 1)
    assert len(asked) == 2 * ANSWERS + 1
    assert all(one is asked[0] for one in asked[:ANSWERS]) and asked[ANSWERS] is not asked[0]
    assert asked[2 * ANSWERS] is not asked[ANSWERS]


def test_a_memory_is_shared_from_the_second_request_on() -> None:
    model, inputs = tiny("llama"), prompt("llama", images=0, batch=1)
    shared = SharedMemory(drafters.Stand(), "table", drafters.LawTable())
    passes = [
        mmspec.generate(model, drafter=shared, max_new_tokens=12, do_sample=False, return_dict=True, **inputs)
        for _ in range(3)
    ]
    first, second, third = (one.stats.target_passes for one in passes)
    assert first == second > third  # the second request meets an empty memory, the third its own answer
    assert torch.equal(passes[0].sequences, passes[2].sequences)


def test_trees_of_the_suite_have_equal_nodes() -> None:
    rows = {row.key: row for row in VlmBenchConfig(suite="families").known()}
    made = {
        key: rows[f"eagle-{key}"].change(mmspec.zoo.load("vlm/eagle")).shapes[1]
        for key in ("tree", "flat", "deep", "dyspec")
    }
    assert made["tree"].nodes == made["dyspec"].nodes == _NODES
    assert len(made["flat"].parents) == len(made["deep"].parents) == _NODES + 1
    assert made["deep"].longest > made["flat"].longest
    assert "eagle-chain-8-judge" in rows and FAMILIES.batches == (1,)
