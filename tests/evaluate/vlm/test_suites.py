"""The suites on tiny random models: rows, costs, comparisons, and the curves drawn of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.report.bench_page import markdown
from mmspec.evaluate.report.plots import draw
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from mmspec.evaluate.vlm.methods import HEAD
from mmspec.evaluate.vlm.page import COLUMNS
from mmspec.evaluate.vlm.suites import SUITES
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead
from tests.evaluate.tiny_zoo import WIDTH, load, tiny_zoo, use_tiny_zoo

pytestmark = pytest.mark.whole  # every suite runs once
SMALL = dict(prompts=2, new_tokens=6, threads=1)
ASKED = {
    "drafters": dict(batches=(1, 2), methods=("eagle_text", "msd", "flash", "vispec", "eagle-tree", "msd-viskip",
                     "eagle-confidence", "auto", "random", "random-goodput")),
    "pictures": dict(methods=("msd", "flash")),
    "blocks": dict(temperatures=(0.0,)),
    "lengths": dict(batches=(2,), temperatures=(0.0,), methods=("eagle-1", "eagle-12", "eagle-goodput", "random-2",
                    "random-goodput", "weak-3")),
    "strict": dict(batches=(1,)),
    "captured": dict(batches=(1,), methods=("plain-captured", "msd-chain", "msd-chain-captured")),
}  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    patch = pytest.MonkeyPatch()
    use_tiny_zoo(patch)
    try:
        return {name: bench(DOMAIN, VlmBenchConfig(suite=name, **SMALL, **asked)) for name, asked in ASKED.items()}
    finally:
        patch.undo()


def rows(result: dict, *keys: str) -> list[dict]:
    return [row for row in result["rows"] if row["key"] in keys]


def test_every_suite_ran_and_gave_the_targets_words(results: dict) -> None:
    for name, result in results.items():
        wrong = [failure for failure in bench_failures(DOMAIN, result) if "ViSpec" not in failure]
        assert not wrong, (name, wrong)
        assert all(row["tokens"] <= 6 for row in result["rows"] if not row["failed"])
        assert all(f"| {row['method']} |" in markdown(DOMAIN.page(result), result) for row in result["rows"])


def test_auto_is_held_against_its_own_drafter_and_plain_decoding(results: dict) -> None:
    for row in rows(results["drafters"], "auto"):
        assert row["exact"] and row["controlled"] and row["best_fixed"] and row["speedup_vs_best_fixed"] > 0


def test_drafters_meet_both_tasks_at_both_temperatures(results: dict) -> None:
    found = {(row["task"], row["batch"], row["temperature"]) for row in rows(results["drafters"], "msd")}
    assert found == {(task, size, t) for task in ("captions", "questions") for size in (1, 2) for t in (0.0, 1.0)}


def test_drafters_are_timed_alone_and_compared_with_the_text_only_drafter(results: dict) -> None:
    for row in rows(results["drafters"], "msd", "flash", "eagle_text"):
        parts = row["drafter_prefill_ms"], row["drafter_round_ms"]
        assert min(parts) > 0 and row["drafter_cost_ms"] == pytest.approx(sum(parts), abs=2e-3)
        assert 0 < row["drafter_step_ms"] <= row["drafter_round_ms"] + 1e-3
        assert row["parameters"] > 0 and row["drafter_passes_per_token"] > 0
        assert row["accept_vs_reference"] > 0
        if row["key"] == "eagle_text":
            assert row["accept_vs_reference"] == 1
    for row in rows(results["drafters"], "plain"):
        assert row["parameters"] is None and row.get("drafter_cost_ms") is None


def test_missing_weights_are_a_row_with_the_reason(results: dict) -> None:
    for row in rows(results["drafters"], "vispec"):
        assert "expected weights of vlm/vispec" in row["failed"] and row["exact"] is None


def test_compressed_rows_stay_few_as_pictures_grow(results: dict) -> None:
    for row in rows(results["pictures"], "msd", "flash"):
        text = row["drafter_rows"] - row["pictures"] * (4 if row["key"] == "msd" else 2)
        assert text > 0
        assert (row["cost_vs_reference"] == 1) == (row["key"] == "msd")
    by_key = {key: [r["drafter_rows"] for r in rows(results["pictures"], key)] for key in ("msd", "flash")}
    assert [a - b for a, b in zip(by_key["msd"], by_key["flash"], strict=True)] == [2, 8, 16, 32]


@pytest.mark.parametrize("way", ("strict", "captured"))
def test_rows_run_two_ways_are_the_same_words(results: dict, way: str) -> None:
    there = {row["key"]: row for row in results[way]["rows"] if row["temperature"] == 0}
    assert {f"plain-{way}", f"msd-chain-{way}", "msd-chain"} <= there.keys()
    for key, row in there.items():
        assert row["identical"] == "2/2" and row["accept_length"] == there[key.removesuffix(f"-{way}")]["accept_length"]


def test_more_tokens_a_pass_take_fewer_passes(results: dict) -> None:
    one, five = (rows(results["blocks"], f"flash-{count}")[0] for count in (1, 5))
    assert five["drafter_passes_per_token"] < one["drafter_passes_per_token"]


def test_a_controller_is_compared_with_plain_and_the_best_fixed_length(results: dict) -> None:
    for row in rows(results["lengths"], "eagle-goodput", "random-goodput"):
        drafter = row["key"].split("-")[0]
        rivals = [
            r
            for r in results["lengths"]["rows"]
            if r["task"] == row["task"] and (r["key"] == "plain" or r["drafter"] == drafter and not r["controlled"])
        ]
        best = max(rivals, key=lambda r: r["speedup_vs_ar"])
        assert row["best_fixed"] == best["method"] and row["speedup_vs_best_fixed"] > 0
    text = " ".join(DOMAIN.page(results["lengths"]).notes)
    assert "goodput against plain decoding" in text and "goodput against the best fixed length" in text


@pytest.mark.parametrize("name", ("pictures", "blocks", "lengths"))
def test_the_curves_are_drawn(name: str, results: dict, tmp_path: Path) -> None:
    panels = DOMAIN.panels(results[name])
    assert all(panel.lines for panel in panels)
    assert all(math.isfinite(y) for panel in panels for _, ys in panel.lines.values() for y in ys)
    draw(panels, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_drafter_gets_the_rows_of_the_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_zoo(monkeypatch)
    tiny_zoo()["vlm/flash"].save_pretrained(tmp_path)
    saved = (("plain-flash", str(tmp_path)),)
    config = VlmBenchConfig(suite="blocks", saved=saved, methods=("plain-flash-2",), temperatures=(0.0,), **SMALL)
    result = bench(DOMAIN, config)
    assert not bench_failures(DOMAIN, result)
    (row, _) = rows(result, "plain-flash-2")
    assert row["drafter"] == str(tmp_path) and row["method"] == "plain-flash, 2 a pass"


def test_the_acceptance_head_has_a_row_where_the_zoo_has_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    head = AcceptanceHead(AcceptanceConfig(WIDTH)).eval().requires_grad_(False)
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["vlm/eagle"])
    assert "eagle-specdecpp" not in [method.key for method in VlmBenchConfig(suite="drafters").rows]
    monkeypatch.setattr("mmspec.zoo.names", lambda: [HEAD, "vlm/eagle"])
    monkeypatch.setattr("mmspec.zoo.load", lambda name: head if name == HEAD else load(name))
    result = bench(DOMAIN, VlmBenchConfig(suite="drafters", batches=(1,), methods=("eagle-specdecpp",), **SMALL))
    assert not bench_failures(DOMAIN, result)
    assert {row["exact"] for row in rows(result, "eagle-specdecpp")} == {True}


def test_suites_name_columns_that_exist() -> None:
    assert all(set(suite.columns) <= set(COLUMNS) for suite in SUITES.values())
