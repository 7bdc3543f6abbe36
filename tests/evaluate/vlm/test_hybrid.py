"""The bench and the sweeps of the hybrid target, and documents in both, on tiny random models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.engine.registry import domain_of
from mmspec.evaluate.report.bench_page import markdown
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from mmspec.evaluate.vlm.quality import WordsRight, evaluate_hybrid
from mmspec.evaluate.vlm.requests import DOCUMENTS, documents, held_out_documents
from mmspec.run.vlm_models import drafter_names, short_name, zoo_resources
from mmspec.zoo.files.table import MODELS
from mmspec.zoo.world.scene import EVAL_START
from tests.evaluate.tiny_hybrid import tiny_hybrid, use_tiny_hybrid


@pytest.fixture(scope="module")
def result() -> dict:
    patch = pytest.MonkeyPatch()
    use_tiny_hybrid(patch)
    try:
        return bench(DOMAIN, VlmBenchConfig(suite="hybrid", prompts=2, new_tokens=6, batches=(1, 2), threads=1))
    finally:
        patch.undo()


@pytest.mark.whole
def test_every_row_gives_the_hybrids_own_words(result: dict) -> None:
    assert not bench_failures(DOMAIN, result)
    keys = {row["key"] for row in result["rows"]}
    assert keys == {"hf", "plain", "dflash", "dflash-tree", "mtp", "mtp-tree", "lookup", "recycling"}
    assert not [row["failed"] for row in result["rows"] if row["failed"]]
    assert {row["task"] for row in result["rows"]} == {"captions", "questions", "documents"}
    assert "zoo vlm/hybrid" in result["env"]["model"] and "documents" in markdown(DOMAIN.page(result), result)
    assert all(0 < row["top1_probability"] <= 1 for row in result["rows"])


def test_documents_are_held_out_and_selected_by_seed() -> None:
    few, more, other = documents(2), documents(4), documents(2, seed=1)
    assert [prompt.images[0].tobytes() for prompt in few] == [prompt.images[0].tobytes() for prompt in more[:2]]
    assert few[0].images[0].tobytes() != other[0].images[0].tobytes()
    assert min(document.seed for document in held_out_documents(3)) >= EVAL_START
    assert DOCUMENTS.make(1, 0)[0].text == few[0].text == "Transcribe the document."
    with pytest.raises(ValueError, match="--prompts"):
        documents(0)


def test_drafters_of_one_target_are_not_offered_for_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_hybrid(monkeypatch)
    assert {"hybrid-dflash", "hybrid-mtp", "lookup"} <= set(drafter_names("vlm/hybrid"))
    assert not {"eagle", "small", "msd"} & set(drafter_names("vlm/hybrid"))
    assert not {"hybrid-dflash", "hybrid-mtp"} & set(drafter_names())
    assert short_name("vlm/hybrid/mtp") == "hybrid-mtp"
    resources = zoo_resources("vlm/hybrid")
    assert resources.drafter("vlm/hybrid/mtp") is tiny_hybrid()["vlm/hybrid/mtp"]
    with pytest.raises(ValueError, match="which 'vlm/eagle' was trained for"):
        resources.drafter("eagle")
    with pytest.raises(ValueError, match="expected one of ar, hf"):
        domain_of("vlm").method("vlm/hybrid", "eagle", "")


def test_every_other_prompt_of_the_hybrids_sweep_is_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_hybrid(monkeypatch)
    sweep = domain_of("vlm")
    asked = sweep.prompts("vlm/hybrid", 4, 0)
    assert [prompt.category for prompt in asked] == ["", "document"] * 2
    assert [prompt.category for prompt in sweep.prompts("vlm", 4, 0)] == [""] * 4
    truth = {document.seed: document.text for document in held_out_documents(4)}
    said = ["a red circle", truth[asked[1].world], "", truth[asked[3].world].rpartition(" ")[0]]
    scores = WordsRight()(said, asked)
    assert np.isnan(scores[[0, 2]]).all() and scores[1] == 1 and 0.9 < scores[3] < 1
    assert [scorer.name for scorer in sweep.scorers("vlm/hybrid")] == ["objects_right", "answer_right", "words_right"]
    objects = sweep.scorers("vlm/hybrid")[0](said, asked)
    assert np.isnan(objects[[1, 3]]).all() and not np.isnan(objects[[0, 2]]).any()
    decodings = [name for name, _ in sweep.defaults("vlm/hybrid")]
    assert decodings[:3] == ["ar", "hybrid-dflash", "hybrid-mtp"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.evaluate.vlm.quality.LIMIT", 8)
        figures = evaluate_hybrid(*tiny_hybrid()["vlm/hybrid"], count=5, documents=2)
    assert {"words_right", "pages_right", "objects_right", "top1"} <= figures.keys()


def test_without_weights_the_suite_says_how_to_build_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.files.registry.WEIGHTS", tmp_path)
    for name in ("vlm/hybrid", "vlm/hybrid/dflash", "vlm/hybrid/mtp"):
        monkeypatch.setitem(MODELS, name, replace(MODELS[name], ships=False))
    config = VlmBenchConfig(suite="hybrid", prompts=1)
    assert [method.key for method in config.rows] == ["hf", "plain", "lookup", "recycling"]
    with pytest.raises(ValueError, match="mmspec zoo build vlm/hybrid"):
        DOMAIN.resources(config)
