"""`mmspec bench continuous` on random tiny models: rows, figures, identity, the curve, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.evaluate.continuous import figures
from mmspec.evaluate.continuous.config import ContinuousBenchConfig
from mmspec.evaluate.continuous.domain import DOMAIN, token_bytes
from mmspec.evaluate.continuous.figures import predicted_speedup
from mmspec.evaluate.continuous.page import COLUMNS
from mmspec.evaluate.continuous.suites import PARTS, SUITES
from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.engine.rows import FIELDS
from mmspec.evaluate.report.bench_page import markdown
from mmspec.evaluate.report.plots import draw
from mmspec.run.continuous_models import open_continuous, pipeline_of
from tests.evaluate.tiny_continuous import captioned, causal, masked, use_tiny_continuous

ROW = {*FIELDS, "guidance", "num_iter", "head_calls", "target_forwards", "acceptance", "gamma", "cost_ratio",
       "predicted_speedup", "identical", "draw_spread", "head_steps", "drafter_passes"}  # fmt: skip
MASKED = ("cspd-patch-derived-4", "cspd-truncate-published-4", "tolerance-0", "head-1", "head-4", "anneal", "checkerboard",
          "lazy", "lazy-tokens-0.1", "head+anneal+checkerboard+lazy", "cspd+head+anneal")  # fmt: skip
CAUSAL = ("causal-head-1", "causal-head-4", "reflection-4", "gaussian_block-4", "reflection-4+head")


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_continuous(patch)
        yield


def run(**settings: object) -> dict:
    told: list[str] = []
    config = ContinuousBenchConfig(threads=1, **{"prompts": 2, "batches": (1, 2), "guidance": (2.0,), **settings})
    result = bench(DOMAIN, config, on_run=told.append)
    assert len(told) == config.requests()
    return result


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    return {"mar": run(methods=MASKED, batches=(2,)), "car": run(model="car", methods=CAUSAL, prompts=1, batches=(1,))}


def rows_of(result: dict) -> dict[str, dict]:
    return {row["key"]: row for row in result["rows"]}


@pytest.mark.parametrize("model", ["mar", "car"])
def test_every_row_has_the_shared_fields_and_its_own(model: str, results: dict) -> None:
    result = results[model]
    assert bench_failures(DOMAIN, result) == []
    for row in result["rows"]:
        assert row.keys() >= ROW and not row["failed"] and row["tokens"] == 16 and row["seconds"] > 0
        assert (row["head_steps"], row["values"]) == (4, 16) and row["draw_spread"] > 0.05
        shares = [row[f"{part}_share"] for part in ("draft", "target", "verify", "other")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert (row["acceptance"] is None) == (row["cost_ratio"] is None) == (row["gamma"] is None)
    plain = rows_of(result)["ar"]
    assert (plain["target_passes"], plain["head_calls"], plain["speedup_vs_ar"]) == (16, 64, 1)
    assert json.loads(json.dumps(result, allow_nan=False))["rows"] == result["rows"]


def test_only_exact_copies_of_plain_decoding_are_checked_bit_for_bit(results: dict) -> None:
    for model, must in (("mar", {"ar", "tolerance-0", "head-1"}), ("car", {"ar", "causal-head-1"})):
        rows = rows_of(results[model])
        assert {key for key, row in rows.items() if row["identical"] is not None} == must
        assert {rows[key]["identical"] for key in must} == {"1/1"}
        assert all(rows[key]["exact"] for key in must)


def test_exact_methods_are_marked(results: dict) -> None:
    exact = {key for key, row in rows_of(results["mar"]).items() if row["exact"]}
    assert exact == {"ar", "tolerance-0", "head-1", "head-4"}
    assert all(row["exact"] for row in results["car"]["rows"])


def test_an_exact_row_of_other_bits_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = next(method for method in SUITES["speed"].methods if method.key == "head-4")
    suite = replace(SUITES["speed"], methods=(SUITES["speed"].methods[0], replace(wrong, bitwise=True)))
    monkeypatch.setitem(SUITES, "speed", suite)
    (said,) = bench_failures(DOMAIN, run(batches=(1,)))
    assert "head window 4" in said and "expected the tokens of plain decoding, bit for bit" in said


def test_tokens_are_equal_only_where_every_bit_is() -> None:
    tokens = torch.zeros(1, 2, 3)
    other = tokens.clone()
    other[0, 1, 2] = -0.0
    assert token_bytes(tokens) == token_bytes(tokens.clone()) != token_bytes(other) and len(token_bytes(tokens)[0]) == 2


def test_windows_are_counted(results: dict) -> None:
    rows = rows_of(results["mar"])
    patch = rows["cspd-patch-derived-4"]
    # one step alone, then windows of four of the fifteen left
    assert (patch["target_passes"], patch["drafter_passes"], patch["head_calls"]) == (5, 15, 4 * (5 + 15))
    assert patch["predicted_speedup"] == predicted_speedup(4, patch["cost_ratio"])
    # c and v are of these seconds, so the whole follows from them but for what is neither drafter nor target
    assert patch["predicted_in_full"] == pytest.approx(
        16 / (1 + 15 * patch["cost_ratio"] + 4 * patch["window_cost"]), 0.01
    )
    assert rows["cspd-truncate-published-4"]["predicted_speedup"] is None
    assert rows["cspd-truncate-published-4"]["predicted_in_full"] is None
    assert rows["tolerance-0"]["target_forwards"] == 16  # judges step by step


@pytest.mark.whole
def test_a_drafter_of_the_targets_weights_is_accepted(tmp_path: Path) -> None:
    captioned().save_pretrained(tmp_path / "same")
    rows = rows_of(run(draft=str(tmp_path / "same"), batches=(1,), methods=("tolerance-0", "cspd-patch-derived")))
    assert rows["tolerance-0"]["acceptance"] == 1 and rows["tolerance-0"]["identical"] == "2/2"
    assert rows["tolerance-0"]["target_passes"] == 3 and rows["tolerance-0"]["target_forwards"] == 16
    assert all(rows[f"cspd-patch-derived-{gamma}"]["gamma"] == gamma for gamma in (4, 8, 16, 32))


def test_the_prediction_is_the_papers() -> None:
    # MAR-H with MAR-B costs 0.398 of a pass: the published 2.33, 2.17, 1.91 and 1.54 or close by
    assert [predicted_speedup(gamma, 0.398) for gamma in (32, 16, 8, 4)] == pytest.approx(
        [2.33, 2.17, 1.91, 1.54], abs=0.006
    )


def test_schedules_save_the_expected_calls(results: dict) -> None:
    rows = rows_of(results["mar"])
    assert rows["anneal"]["head_calls"] < 64 == rows["lazy"]["head_calls"] == rows["lazy-tokens-0.1"]["head_calls"]
    assert rows["checkerboard"]["target_passes"] == 9
    assert rows_of(results["car"])["causal-head-4"]["head_calls"] < 64


@pytest.mark.whole
def test_heads_run_the_requested_number_of_steps() -> None:
    asked = dict(batches=(1,), guidance=(1.0,), methods=("head-1", "cspd-patch-derived-4", "anneal"))
    rows = rows_of(run(**asked, num_sampling_steps="10"))
    assert rows["ar"]["head_steps"] == 10 and rows["ar"]["head_calls"] == rows["head-1"]["head_calls"] == 160
    assert rows["cspd-patch-derived-4"]["head_calls"] == 10 * (5 + 15) and 10 < rows["anneal"]["head_calls"] < 160
    with pytest.raises(ValueError, match="num_sampling_steps: expected 2 to 1000 steps"):
        run(**asked, num_sampling_steps="many")


def test_the_stack_has_every_combination_once() -> None:
    keys = {method.key for method in SUITES["pareto"].methods}
    found = {frozenset(key.split("+")) for key in keys if set(key.split("+")) <= set(PARTS)}
    assert len(found) == 2 ** len(PARTS) - 2 and {"ar", "head-8"} <= keys  # nothing, and the head's window alone


def test_two_draws_with_the_same_noise_are_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    (setting,) = ContinuousBenchConfig(prompts=2, batches=(2,), guidance=(2.0,), threads=1).settings()
    resources = open_continuous("mar")
    asked = DOMAIN.cases(resources, setting)[0]
    assert figures.target_figures(resources, setting, asked)["draw_spread"] > 0.05
    monkeypatch.setattr(figures, "SECOND_DRAW_SEED", 0)
    assert figures.target_figures(resources, setting, asked)["draw_spread"] == 0


@pytest.mark.whole
def test_speed_and_quality_make_a_curve(tmp_path: Path) -> None:
    result = run(suite="pareto", prompts=1, batches=(1,), images=8, methods=("tolerance-0", "tolerance-1", "lazy"))
    assert bench_failures(DOMAIN, result) == []
    for row in result["rows"]:
        low, high = row["frechet_interval"]
        assert low < row["frechet"] < high and 0 <= row["judge"] <= 1 and row["images"] == 8
    rows = rows_of(result)
    assert rows["tolerance-0"]["frechet"] == rows["ar"]["frechet"] != rows["lazy"]["frechet"]
    (panel,) = DOMAIN.panels(result)
    assert len(panel.lines["tolerance"][0]) == 2 and "plain" in panel.lines
    assert set(panel.clouds) == {"schedules alone"}
    draw([panel], tmp_path / "curve.png")
    text = markdown(DOMAIN.page(result), result)
    assert "tokens of 4 denoising steps" in text and "fastest relaxed method" in text
    with pytest.raises(ValueError, match="expected a suite with a curve, got 'speed'"):
        DOMAIN.panels({"env": {"suite": "speed"}, "rows": []})


def test_a_plot_labels_the_pareto_front() -> None:
    shared = {
        "batch": 1,
        "guidance": 2.0,
        "num_iter": 64,
        "temperature": 1.0,
        "images": 8,
        "frechet_ar": 3.0,
        "knob": None,
    }
    made = [
        {
            **shared,
            "method": name,
            "family": "" if name == "plain" else "stack",
            "gamma": gamma,
            "speedup_vs_ar": speed,
            "frechet": distance,
        }
        for name, gamma, speed, distance in (
            ("plain", None, 1.0, 1.0),
            ("slow", None, 0.5, 0.5),
            ("beaten", None, 1.5, 2.5),
            ("a hair faster", 8, 4.01, 3.0),
            ("near", 8, 4.0, 2.0),
            ("far", 16, 5.0, 4.0),
        )
    ]
    (panel,) = DOMAIN.panels({"env": {"suite": "pareto"}, "rows": made})
    assert [name for *_, name in panel.notes] == ["plain", "near", "far"]
    assert {name: len(xs) for name, (xs, _) in panel.clouds.items()} == {"schedules alone": 2, "CSpD with schedules": 3}


@pytest.mark.whole
def test_quality_alone_and_the_published_suite() -> None:
    result = run(suite="quality", prompts=None, batches=None, images=8, model="car", methods=("reflection-4",))
    assert [row["key"] for row in result["rows"]] == ["ar", "reflection-4"] and bench_failures(DOMAIN, result) == []
    result = run(suite="published", guidance=None, methods=("cspd-patch-published",), batches=(1,))
    assert {row["num_iter"] for row in result["rows"]} == {0} and bench_failures(DOMAIN, result) == []
    notes = DOMAIN.page(result).notes
    assert any(note.startswith("published for MAR-H with MAR-B") for note in notes)
    assert any(note.startswith("patched windows came to ") for note in notes)


def test_folders_are_benched(tmp_path: Path) -> None:
    masked(pixels=False, classes=5).save_pretrained(tmp_path / "mar")
    causal().save_pretrained(tmp_path / "car")
    config = ContinuousBenchConfig(model=str(tmp_path / "mar"), threads=1)
    assert not any(method.part for method in config.rows) and config.folders() == [tmp_path / "mar"]
    result = run(model=str(tmp_path / "mar"), methods=("head-1",), batches=(2,))
    assert result["env"]["model"] == str(tmp_path / "mar") and rows_of(result)["head-1"]["identical"] == "1/1"
    assert pipeline_of(str(tmp_path / "car")).model.transformer.config.class_num == 64
    judged = ContinuousBenchConfig(model=str(tmp_path / "mar"), suite="quality", images=8)
    with pytest.raises(ValueError, match="--model: expected an autoencoder for judged pictures"):
        judged.check(open_continuous(judged.model))
    with pytest.raises(ValueError, match="--draft: expected a masked model as --model is"):
        ContinuousBenchConfig(model=str(tmp_path / "mar"), draft=str(tmp_path / "car"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"suite": "magic"},
        {"model": "t2i"},
        {"model": "car", "num_iter": (4,)},
        {"model": "car", "draft": "mar"},
        {"draft": "nowhere"},
        {"num_iter": (-1,)},
        {"guidance": ()},
        {"methods": ("reflection",)},
        {"suite": "speed", "images": 200},
        {"suite": "quality", "batches": (1,)},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected .*, got .*, "):
        ContinuousBenchConfig(**wrong)


def test_models_without_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["t2i"])
    with pytest.raises(ValueError, match="--model: expected weights of the zoo's mar, got none yet, name a folder"):
        DOMAIN.resources(ContinuousBenchConfig())


def test_suites_name_columns_and_methods_once() -> None:
    for suite in SUITES.values():
        keys = [method.key for method in suite.methods]
        assert len(set(keys)) == len(keys) and keys[0] == "ar" and set(suite.columns) <= set(COLUMNS)
        families = {method.family for method in suite.methods} - {""}
        assert not families & set(keys)
