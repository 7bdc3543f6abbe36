"""Rows of runs written by hand: every ratio, share and interval by arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmspec.evaluate.engine.records import decode_row
from mmspec.evaluate.quality.frechet import frechet
from mmspec.evaluate.quality.generative_metrics import kernel_distance
from mmspec.evaluate.report.cautions import cautions, failures
from mmspec.evaluate.report.measures import figures
from mmspec.evaluate.report.profiles import (
    acceptance_by_position,
    by_temperature,
    seconds_by_part,
    time_shares,
    without_temperature,
)
from mmspec.evaluate.report.rows import category_rows, rows, tables
from mmspec.evaluate.report.tables import category_grids
from tests.evaluate.report.kept import failed, grid, header, real, sample, score, written


def by_method(found: list[dict]) -> dict[str, dict]:
    return {row["method"]: row for row in found}


def test_speedups_are_reported_with_and_without_the_prefill(tmp_path: Path) -> None:
    records = [
        one
        for prompt in range(3)
        for one in (sample("ar", prompt, 3.0, prefill=1.0), sample("eagle", prompt, 2.0, prefill=1.0, passes=5))
    ]
    row = by_method(rows(written(tmp_path, records)))["eagle"]
    assert row["speedup_vs_ar"] == 1.5 and row["decode_speedup_vs_ar"] == 2.0
    assert row["speedup_interval"] == [1.5, 1.5] and row["decode_speedup_interval"] == [2.0, 2.0]
    assert row["accept_length"] == 2.0 and row["samples"] == 3 and not row["plain"]
    plain = by_method(rows(written(tmp_path, [])))["plain"]
    assert plain["plain"] and plain["speedup_vs_ar"] == plain["decode_speedup_vs_ar"] == 1.0


def test_ratios_are_of_the_same_prompt_and_sample_and_of_tokens(tmp_path: Path) -> None:
    times = {0: (2.0, 1.0), 1: (8.0, 1.0), 2: (3.0, 1.0)}
    records = [
        one
        for prompt, (plain, own) in times.items()
        for one in (sample("ar", prompt, plain), sample("eagle", prompt, own, prefill=0.5, tokens=5))
    ]
    row = by_method(rows(written(tmp_path, records)))["eagle"]
    assert row["speedup_vs_ar"] == pytest.approx(np.median([1.0, 4.0, 1.5]))


def test_a_missing_sample_is_not_a_slow_sample(tmp_path: Path) -> None:
    records = [sample("ar", prompt, 2.0) for prompt in range(3)] + [sample("eagle", 1, 1.0, prefill=0.5)]
    found = written(tmp_path, records)
    row = by_method(rows(found))["eagle"]
    assert row["speedup_vs_ar"] == 2.0 and row["samples"] == 1
    assert any("different numbers of samples (1, 3)" in caution for caution in cautions(found))


def test_without_plain_decoding_there_is_no_speed(tmp_path: Path) -> None:
    (row,) = rows(written(tmp_path, [sample("eagle", 0), sample("eagle", 1)]))
    assert row["speedup_vs_ar"] is None and row["decode_speedup_vs_ar"] is None and row["speedup_interval"] is None


def test_greedy_exact_rows_say_how_many_outputs_are_plain_decodings(tmp_path: Path) -> None:
    records = [sample("ar", prompt, temperature=0.0) for prompt in range(3)]
    records += [
        sample("eagle", prompt, temperature=0.0, token_hash="other" if prompt == 2 else "same") for prompt in range(3)
    ]
    assert by_method(rows(written(tmp_path, records)))["eagle"]["identical"] == "2/3"


def test_failures_are_counted_and_reported(tmp_path: Path) -> None:
    found = written(tmp_path, [sample("ar", 0), sample("ar", 1), failed("eagle", 0), failed("eagle", 1)])
    row = by_method(rows(found))["eagle"]
    assert row["exact"] is None and row["speedup_vs_ar"] is None and row["failed_requests"] == 2
    assert failures(found) == ["eagle (t2i, T = 1) failed in 2 of 2 samples: ValueError: no weights"]


def test_settings_are_tables_of_their_own_with_plain_decoding_first(tmp_path: Path) -> None:
    records = [sample(decoding, 0, temperature=t) for t in (1.0, 0.0) for decoding in ("eagle", "ar")]
    found = tables(written(tmp_path, records))
    assert [entry.name for entry in found] == ["t2i, T = 0", "t2i, T = 1"]
    assert [samples[0]["of"]["decoding"] for samples in found[0].cells.values()] == ["ar", "eagle"]
    assert all(entry.plain == next(iter(entry.cells)) for entry in found)


def test_quality_is_reported_beside_speed_with_intervals(tmp_path: Path) -> None:
    found = written(tmp_path, grid(12))
    made = by_method(rows(found))
    exact, relaxed = made["sjd:window=4"], made["sjd + gsd"]
    features = {
        cell: np.stack([decode_row(found.scores[sample["key"], "j"]["features"]) for sample in samples])
        for cell, samples in tables(found)[0].cells.items()
    }
    true = np.stack([decode_row(one["features"]) for _, one in sorted(found.real.items())])
    for row in made.values():
        assert row["frechet"] == pytest.approx(frechet(features[row["key"]], true), rel=1e-5)
        assert row["kernel"] == pytest.approx(kernel_distance(features[row["key"]], true)[0], rel=1e-5)
        assert (
            row["frechet_interval"][0] < row["frechet"] < row["frechet_interval"][1] and row["inception_score"] == 1.0
        )
    assert relaxed["frechet"] > exact["frechet"] + 5 and relaxed["precision"] < exact["precision"]
    assert exact["clip_score"] == 81 and relaxed["clip_score"] == 71 and exact["clip_score_interval"][1] < 82


def test_means_resample_prompts_whole() -> None:
    entries = {f"p{n}": [{"figures": {"right": float(n % 2), "none": None}}] * 10 for n in range(6)}
    value = figures(entries)["right"]
    assert set(figures(entries)) == {"right"} and value.value == 0.5 and value.count == 60
    assert value.interval[1] - value.interval[0] > 0.5  # 6 prompts, not 60 samples


def test_acceptance_is_counted_behind_the_first_round(tmp_path: Path) -> None:
    samples = [sample("eagle", 0, accepted=(9, 0, 2, 3)), sample("eagle", 1, accepted=(9, 1, 3)), failed("eagle", 2)]
    assert acceptance_by_position(samples) == [4 / 5, 3 / 5, 2 / 5]
    assert acceptance_by_position([sample("ar", 0, accepted=(0, 0, 0))]) == [] and acceptance_by_position(
        samples, 2
    ) == [4 / 5, 3 / 5]


def test_the_split_of_time_is_of_plain_decodings_whole(tmp_path: Path) -> None:
    parts = {"prefill": 0.5, "target": 0.25, "draft": 0.25, "verify": 0.0, "other": 0.0}
    records = [sample("ar", 0, 2.0), sample("eagle", 0, 1.0, parts=parts)]
    (table,) = tables(written(tmp_path, records))
    found = time_shares(table)
    assert found["plain"]["prefill"] == 0.5 and sum(found["plain"].values()) == pytest.approx(1.0)
    assert found["eagle"] == pytest.approx(
        {"prefill": 0.25, "target": 0.125, "draft": 0.125, "verify": 0.0, "other": 0.0}
    )
    assert seconds_by_part([failed("eagle", 0)]) == {}


def test_accept_lengths_against_temperature_need_two(tmp_path: Path) -> None:
    records = [sample("eagle", 0, temperature=t, passes=p) for t, p in ((0.0, 2), (0.5, 4), (1.0, 5))]
    records += [sample("ar", 0, temperature=0.0)]
    found = written(tmp_path, records)
    said = {table.name: without_temperature(table.shared) for table in tables(found)}
    (methods,) = by_temperature(rows(found), said).values()
    assert methods == {"eagle": [(0.0, 5.0), (0.5, 2.5), (1.0, 2.0)]}


def test_cautions_name_the_reasons_for_unreliable_figures(tmp_path: Path) -> None:
    assert not [
        caution for caution in cautions(written(tmp_path / "fine", grid(12))) if "zoo CLIP, which" not in caution
    ]
    small = written(tmp_path / "small", grid(2))
    assert any(
        "2 pictures for the 2 features of zoo CLIP: covariances are singular" in caution for caution in cautions(small)
    )
    other = written(tmp_path / "other", [*grid(12), real(99, np.zeros(2))])
    assert any("12 drawn against 13 real pictures" in caution for caution in cautions(other))
    alone = written(tmp_path / "alone", [record for record in grid(12) if record["kind"] != "real"])
    assert any("no real pictures" in caution and "--reference" in caution for caution in cautions(alone))
    busy = written(tmp_path / "busy", grid(12), header(workers=3))
    assert any("several workers ran at once" in caution for caution in cautions(busy))
    many = written(tmp_path / "many", grid(4))
    written(tmp_path / "many", [], header(processor="Q"))
    assert not many.samples == {} and any(
        "2 kinds of machines" in caution for caution in cautions(written(tmp_path / "many", []))
    )


def test_samples_without_a_score_are_reported(tmp_path: Path) -> None:
    records = [
        record for record in grid(4) if record["kind"] != "score" or not record["key"].startswith("t2i-ar-exact-1.0/p3")
    ]
    assert not [said for said in cautions(written(tmp_path / "all", grid(4))) if "not scored" in said]
    (said,) = [said for said in cautions(written(tmp_path / "some", records)) if "not scored" in said]
    assert "1 of 12 samples are not scored" in said
    unjudged = [record for record in grid(4) if record["kind"] != "score"]
    assert not [said for said in cautions(written(tmp_path / "none", unjudged)) if "not scored" in said]


def test_text_has_no_distances_and_no_caution_about_them(tmp_path: Path) -> None:
    one = sample("ar", 0, model="vlm", domain="vlm", shows="text")
    found = written(tmp_path, [one, score(one, objects_right=0.5)], header("vlm"))
    assert not [text for text in cautions(found) if "pictures for" in text]
    (row,) = rows(found)
    assert row["objects_right"] == 0.5 and "frechet" not in row


def test_categories_have_rows_of_their_own(tmp_path: Path) -> None:
    records = [
        sample(decoding, prompt, seconds, prefill=0.5, category="ab"[prompt % 2])
        for prompt in range(4)
        for decoding, seconds in (("ar", 2.0), ("eagle", 1.0 if prompt % 2 else 4.0))
    ]
    found = written(tmp_path, records)
    speeds = {(row["category"], row["method"]): row["speedup_vs_ar"] for row in category_rows(found)}
    assert speeds == {("a", "plain"): 1.0, ("a", "eagle"): 0.5, ("b", "plain"): 1.0, ("b", "eagle"): 2.0}
    (grid,) = category_grids(category_rows(found))
    assert grid.title == "t2i, T = 1, by category" and ("b", "eagle", "2") in [line[:3] for line in grid.lines]
    assert not category_rows(written(tmp_path / "one", [sample("ar", 0, category="a")]))
