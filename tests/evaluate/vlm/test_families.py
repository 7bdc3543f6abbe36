"""The suite of families: answers to one picture in a row, memories that start after the warm-up, equal nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec import drafters
from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.observed_drafter import SharedMemory
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from mmspec.evaluate.vlm.families import _NODES, ANSWERS, FAMILIES, several_answers
from mmspec.evaluate.vlm.requests import held_out
from mmspec.run.vlm_models import takes_pictures
from tests.evaluate.tiny_zoo import use_tiny_zoo
from tests.evaluate.vlm.tiny_text import save_text_model
from tests.vlm.tiny import prompt, tiny


@pytest.fixture(autouse=True)
def tiny_zoo() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_zoo(patch)
        yield


def test_every_picture_is_asked_several_times_in_a_row() -> None:
    asked = several_answers(held_out, 2 * ANSWERS + 1)
    assert len(asked) == 2 * ANSWERS + 1
    assert all(prompt is asked[0] for prompt in asked[:ANSWERS]) and asked[ANSWERS] is not asked[0]
    assert asked[2 * ANSWERS] is not asked[ANSWERS]


def test_a_memory_is_shared_from_the_second_request_on() -> None:
    model, inputs = tiny("llama"), prompt("llama", images=0, batch=1)
    shared = SharedMemory(drafters.Stand(), drafters.Stand(table=drafters.LawTable()))
    passes = [
        mmspec.generate(model, drafter=shared, max_new_tokens=12, do_sample=False, return_dict=True, **inputs)
        for _ in range(3)
    ]
    first, second, third = (pass_.stats.target_passes for pass_ in passes)
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


def test_the_kind_of_the_model_chooses_the_tasks(tmp_path: Path) -> None:
    tasks = {
        model: [(task.name, task.pictures) for task in VlmBenchConfig(suite="families", model=model).chosen()]
        for model in (None, "vlm/hybrid", "smollm2", str(save_text_model(tmp_path)))
    }
    assert all(pictures for _, pictures in tasks[None] + tasks["vlm/hybrid"])
    assert [name for name, _ in tasks["smollm2"]] == ["chat", "story", "editing", "documents", "several answers"]
    assert not any(pictures for _, pictures in tasks["smollm2"]) and tasks[str(tmp_path)] == tasks["smollm2"]
    # only the hybrid has learned to read pages
    assert [task for task in tasks["vlm/hybrid"] if task not in tasks[None]] == [("documents", 1)]
    assert takes_pictures("vlm") and not takes_pictures("smollm2")
    with pytest.raises(ValueError, match="--tasks: expected one of chat, .*, got 'captions'"):
        VlmBenchConfig(suite="families", model="smollm2", task_names=("captions",))


@pytest.mark.whole
def test_every_row_of_a_text_model_runs(tmp_path: Path) -> None:
    config = VlmBenchConfig(
        suite="families",
        model=str(save_text_model(tmp_path)),
        prompts=2,
        new_tokens=6,
        task_names=("documents",),
        temperatures=(0.0, 1.0),
    )
    rows = bench(DOMAIN, config)["rows"]
    # two layers leave no layer to exit from early
    assert {row["temperature"] for row in rows} == {0.0, 1.0} and {r["key"] for r in rows if r["failed"]} <= {"del"}
    greedy = [row for row in rows if row["temperature"] == 0 and not row["failed"]]
    assert all(row["identical"] == "2/2" for row in greedy if row["exact"])
    assert {"lookup", "stand-shared", "suffix-shared", "swift", "del"} <= {row["key"] for row in rows}
