"""`mmspec bench vlm` on random tiny models: its rows, its columns, and what it says about failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.engine.rows import FIELDS
from mmspec.evaluate.report.bench_page import markdown, tables
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from tests.evaluate.tiny_zoo import use_tiny_zoo

COLUMNS = {*FIELDS, "speedup_vs_hf", "spread_vs_ar", "top1_probability", "answer_share", "identical"}


@pytest.fixture(scope="module")
def result() -> dict:
    patch = pytest.MonkeyPatch()
    use_tiny_zoo(patch)
    told = []
    config = VlmBenchConfig(prompts=2, new_tokens=8, batches=(1, 2), threads=1)
    try:
        result = bench(DOMAIN, config, on_run=told.append)
    finally:
        patch.undo()
    assert len(told) == config.requests()
    return result


def test_rows_are_the_methods_of_every_setting(result: dict) -> None:
    for batch in (1, 2):
        for temperature in (0.0, 1.0):
            keys = [r["key"] for r in result["rows"] if (r["batch"], r["temperature"]) == (batch, temperature)]
            assert keys == [method.key for method in VlmBenchConfig().rows if method.serves(temperature)]
    assert all(row.keys() >= COLUMNS for row in result["rows"])


def test_figures_are_sane(result: dict) -> None:
    for row in result["rows"]:
        if row["failed"]:
            assert row["key"].startswith("hf-") and row["seconds"] is None and row["exact"] is None
            continue
        assert row["exact"] and row["seconds"] > 0 and row["tokens"] == 8
        assert 1 <= row["accept_length"] <= 8 and 1 <= row["target_passes"] <= 8
        assert 0 < row["top1_probability"] <= 1
        if row["key"] == "plain":
            assert row["speedup_vs_ar"] == 1 and row["accept_length"] == 1 and row["target_passes"] == 8
        if row["draft_share"] is not None:
            shares = [row[f"{part}_share"] for part in ("draft", "target", "verify", "other")]
            assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_greedy_rows_give_transformers_tokens(result: dict) -> None:
    greedy = [row for row in result["rows"] if row["temperature"] == 0 and not row["failed"]]
    assert {row["identical"] for row in greedy if row["batch"] == 1} == {"2/2"}
    assert {row["identical"] for row in greedy if row["batch"] == 2} == {"1/1"}
    assert bench_failures(DOMAIN, result) == []


def test_refusals_of_transformers_are_recorded(result: dict) -> None:
    reasons = {(row["key"], row["batch"]): row["failed"] for row in result["rows"] if row["temperature"] == 0}
    assert "batch_size" in reasons["hf-assisted", 2] and "batch_size" in reasons["hf-lookup", 2]
    assert reasons["hf-assisted", 1] is None


def test_a_bench_file_is_plain_json(result: dict) -> None:
    assert json.loads(json.dumps(result, allow_nan=False)) == {
        **result,
        "rows": [json.loads(json.dumps(row)) for row in result["rows"]],
    }
    assert {"versions", "processor", "cores", "threads", "dtype", "command", "date", "model"} <= result["env"].keys()


def test_tables_show_the_rows_own_figures(result: dict) -> None:
    text = markdown(DOMAIN.page(result), result)
    for row in result["rows"]:
        if row["failed"]:
            assert f"{row['method']} failed in" in text
        else:
            low, high = row["spread"]
            assert f"| {row['seconds']} |" in text and f"| {row['speedup_vs_hf']} ({low}-{high}) |" in text
    assert sum(not isinstance(part, str) for part in tables(DOMAIN.page(result), result)) == 4


def test_verdict_names_rows_that_differ_or_fail() -> None:
    row = {
        "method": "m",
        "key": "eagle",
        "exact": True,
        "task": "captions",
        "batch": 1,
        "temperature": 0.0,
        "identical": "1/2",
        "failed": None,
    }
    assert "1 of 2" in bench_failures(DOMAIN, {"rows": [row]})[0]
    assert bench_failures(DOMAIN, {"rows": [{**row, "exact": None, "identical": None, "failed": "ValueError: x"}]})
    assert not bench_failures(
        DOMAIN, {"rows": [{**row, "key": "hf-lookup", "exact": None, "identical": None, "failed": "x"}]}
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompts": 0},
        {"new_tokens": 0},
        {"repeats": 0},
        {"batches": (4,), "prompts": 2},
        {"batches": ()},
        {"temperatures": (-1.0,)},
        {"temperatures": (float("nan"),)},
        {"methods": ("magic",)},
        {"methods": ("plain", "")},
        {"batches": (1, 4), "prompts": 3},
        {"seed": -1},
        {"suite": "magic"},
        {"saved": (("eagle", "folder"),), "suite": "drafters"},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected .*, got .*, "):
        VlmBenchConfig(**wrong)


@pytest.mark.parametrize(("prompts", "batches"), [(1, (1,)), (3, (1, 3)), (30, (1, 4))])
def test_batches_left_out_are_no_larger_than_the_prompts(prompts: int, batches: tuple[int, ...]) -> None:
    assert VlmBenchConfig(prompts=prompts).batches == batches


def test_the_two_baselines_always_run() -> None:
    assert [method.key for method in VlmBenchConfig(methods=("lookup",)).rows] == ["hf", "plain", "lookup"]


def test_methods_may_have_the_names_the_zoo_gives_them() -> None:
    keys = [method.key for method in VlmBenchConfig(suite="drafters", methods=("vlm/specvlm", "msd")).rows]
    assert keys == ["hf", "plain", "msd", "specvlm"]
    with pytest.raises(ValueError, match="got 'vlm/magic', pick from these"):
        VlmBenchConfig(methods=("vlm/magic",))


def test_a_saved_drafter_that_cannot_be_read_is_refused_before_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiny_zoo(monkeypatch)
    config = VlmBenchConfig(suite="drafters", saved=(("mine", str(tmp_path)),))
    with pytest.raises(ValueError, match="expected config.json"):
        config.check(DOMAIN.resources(config))
