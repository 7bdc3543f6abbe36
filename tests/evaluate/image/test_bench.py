"""`mmspec bench image` on a random tiny model: its rows, columns, figures, log, plot, and what it says about failures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import bench_failures
from mmspec.evaluate.engine.rows import FIELDS
from mmspec.evaluate.gallery import GalleryReference
from mmspec.evaluate.image.config import ImageBenchConfig
from mmspec.evaluate.image.domain import DOMAIN
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.page import COLUMNS
from mmspec.evaluate.image.suites import SUITES
from mmspec.evaluate.report.bench_page import markdown, tables
from mmspec.evaluate.report.plots import draw
from mmspec.io.interrupts import Stopped
from tests.evaluate.tiny_images import use_tiny_images

METHODS = ("auto", "sjd-16", "scd-gumbel-32-tree", "scd-gumbel-32-kseq", "pac-64", "eagle-chain",
           "eagle-tree", "sjd-gsd", "eagle-lantern++", "zipar", "mulo")  # fmt: skip
JUDGED = {"frechet", "frechet_interval", "frechet_ar", "clip_score", "retrieval", "judge"}
ROW = JUDGED | {*FIELDS, "guidance", "top_k", "step_compression", "top1_probability", "codes_used", "identical"}


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_images(patch)
        yield


def run(log: Path | None = None, **settings: object) -> dict:
    told: list[str] = []
    config = ImageBenchConfig(threads=1, **settings)
    result = bench(DOMAIN, config, on_run=told.append, log=log)
    assert len(told) == config.requests()
    return result


@pytest.fixture(scope="module")
def result() -> dict:
    """Every kind of method timed; two of them judged too, which costs more."""
    timed = run(suite="speed", prompts=2, batches=(1, 2), guidance=(3.0,), top_k=(0,), methods=METHODS)
    both = run(prompts=1, images=8, batches=(1,), guidance=(1.0, 3.0), top_k=(6,), methods=("sjd-16", "zipar"))
    return both | {"rows": timed["rows"] + both["rows"]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    log = tmp_path_factory.mktemp("log") / "bench.part.jsonl"
    return run(suite="pareto", images=8, log=log, methods=("sjd-16", "sjd-gsd", "mulo")), log


def test_rows_are_the_methods_of_every_setting(result: dict) -> None:
    found: dict[tuple, list[str]] = {}
    for row in result["rows"]:
        assert row.keys() >= ROW
        assert (row["frechet"] is None) == (row["prompts"] > 1 or row["temperature"] == 0)
        setting = row["prompts"], row["batch"], row["guidance"], row["top_k"], row["temperature"]
        found.setdefault(setting, []).append(row["key"])
    timed = [(2, batch, 3.0, 0, temperature) for batch in (1, 2) for temperature in (1.0, 0.0)]
    both = [(1, 1, g, 6, 1.0) for g in (1.0, 3.0)] + [(1, 1, g, 0, 0.0) for g in (1.0, 3.0)]
    assert list(found) == timed + both
    for (prompts, *_, temperature), keys in found.items():
        config = ImageBenchConfig(methods=METHODS if prompts > 1 else ("sjd-16", "zipar"))
        assert keys == [method.key for method in config.rows if method.serves(temperature)]
    assert len(found[timed[0]]) == 12
    assert found[timed[1]] == ["ar", "auto", "sjd-16", "scd-gumbel-32-tree", "pac-64", "eagle-chain", "eagle-tree"]


def test_the_page_says_how_auto_fared(result: dict) -> None:
    lines = DOMAIN.page(result).notes
    for base in ("plain decoding", "the fastest exact row"):
        assert any(
            re.fullmatch(rf"auto against {base}: [\d.]+x at least, over 4 rows \(auto; batch .*\)", line)
            for line in lines
        )


def test_figures_are_sane(result: dict) -> None:
    for row in result["rows"]:
        assert not row["failed"] and row["tokens"] == 16 and row["seconds"] > 0
        assert 1 <= row["step_compression"] <= 16 and 1 <= row["target_passes"] <= 16
        assert 0 < row["top1_probability"] <= 1 and 1 <= row["codes_used"] <= row["codes"] == 16
        shares = [row[f"{part}_share"] for part in ("draft", "target", "verify", "other")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert row["exact"] == (row["rule"] in ("exact", "kseq") and row["family"] not in ("zipar", "mulo"))
        if row["key"] == "ar":
            assert row["speedup_vs_ar"] == 1 and row["step_compression"] == 1 and row["target_passes"] == 16
        if row["temperature"] > 0 and row["prompts"] == 1:
            low, high = row["frechet_interval"]
            assert low < row["frechet"] < high and row["frechet_ar"] > 0
            assert row["frechet_ratio"] == pytest.approx(row["frechet"] / row["frechet_ar"], abs=0.01)
            assert 0 <= row["retrieval"] <= 1 and 0 <= row["judge"] <= 1 and row["images"] == 8


def test_exact_methods_give_plain_codes_when_greedy(result: dict) -> None:
    greedy = [row for row in result["rows"] if row["temperature"] == 0]
    assert {row["identical"] for row in greedy if row["batch"] == 1} == {"2/2", "1/1"}
    assert {row["identical"] for row in greedy if row["batch"] == 2} == {"1/1"}
    assert bench_failures(DOMAIN, result) == []


def test_a_bench_file_is_plain_json(result: dict) -> None:
    assert json.loads(json.dumps(result, allow_nan=False))["rows"] == result["rows"]
    assert {"versions", "processor", "threads", "dtype", "command", "model", "quality"} <= result["env"].keys()


def test_tables_show_the_rows_own_figures(result: dict) -> None:
    text = markdown(DOMAIN.page(result), result)
    for row in result["rows"]:
        low, high = row["spread"]
        assert f"| {row['seconds']} | {row['speedup_vs_ar']} ({low}-{high}) |" in text
        if row.get("frechet") is not None:
            assert f"| {row['frechet']} ({row['frechet_interval'][0]}-{row['frechet_interval'][1]}) |" in text
        assert f"mean top-1 probability {row['top1_probability']}, {row['codes_used']} of 16 codes used" in text
    assert sum(not isinstance(part, str) for part in tables(DOMAIN.page(result), result)) == 8
    assert any(note.startswith("fastest exact method: ") for note in DOMAIN.page(result).notes)
    assert any("step compression of batch 2 against batch 1" in note for note in DOMAIN.page(result).notes)


def test_a_sweep_goes_on_from_its_log(swept: tuple[dict, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    result, log = swept
    about, *parts = (json.loads(line) for line in log.read_text().splitlines())
    assert [part["value"] for part in parts] == result["rows"] and len(parts) == 1 + 1 + 5 + 5
    assert about["about"]["settings"]["suite"] == "pareto"
    # the last row was cut off when the bench was killed
    log.write_text("\n".join(log.read_text().splitlines()[:-1]) + '\n{"method": "MuL')
    judged, judge = [], GalleryReference.judge
    monkeypatch.setattr(GalleryReference, "judge", lambda *given: judged.append(given[1].key) or judge(*given))
    again = run(suite="pareto", images=8, log=log, methods=("sjd-16", "sjd-gsd", "mulo"))
    assert again["rows"] == result["rows"] and judged == ["mulo-0.005"]
    assert [json.loads(line) for line in log.read_text().splitlines()] == [about, *parts]


@pytest.mark.whole
def test_the_rows_of_a_setting_are_saved_and_a_stopped_bench_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict(
        suite="speed", prompts=2, batches=(1, 2), guidance=(3.0,), top_k=(0,), temperatures=(1.0,), methods=("sjd-16",)
    )
    log, seen = tmp_path / "bench.part.jsonl", []

    def stop(text: str) -> None:
        seen.append(text)
        if sum(one.startswith("batch 2") for one in seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(Stopped, match=r"\(parts: 1\) is kept in .*bench.part.jsonl$"):
        bench(DOMAIN, ImageBenchConfig(threads=1, **asked), on_run=stop, log=log)
    (part,) = (entry for entry in map(json.loads, log.read_text().splitlines()) if entry["kind"] == "part")
    assert part["part"] == {"timed": {"batch": 1, "guidance": 3.0, "top_k": 0, "temperature": 1.0}}
    seen.clear()
    result = bench(DOMAIN, ImageBenchConfig(threads=1, **asked), on_run=seen.append, log=log)
    assert [row["batch"] for row in result["rows"]] == [1, 1, 2, 2]
    assert all(row.items() >= kept.items() for row, kept in zip(result["rows"][:2], part["value"], strict=True))
    assert {text.endswith("kept") for text in seen if text.startswith("batch 1")} == {True}
    assert len(seen) == ImageBenchConfig(threads=1, **asked).requests()
    seen.clear()
    other = bench(DOMAIN, ImageBenchConfig(threads=1, seed=1, **asked), on_run=seen.append, log=log)
    assert not any(text.endswith("kept") for text in seen)
    assert [row["seconds"] for row in other["rows"][:2]] != [row["seconds"] for row in part["value"]]


def test_the_curve_is_drawn(swept: tuple[dict, Path], tmp_path: Path) -> None:
    (panel,) = DOMAIN.panels(swept[0])
    assert {"plain AR", "SJD 16", "sjd-gsd", "mulo"} < set(panel.lines)
    assert all(len(panel.lines[name][0]) == 5 for name in ("sjd-gsd", "mulo"))
    assert panel.lines["plain AR"][0] == (1.0,)
    draw([panel], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="expected a suite with a curve, got 'speed'"):
        DOMAIN.panels({"env": {"suite": "speed"}, "rows": []})


def test_missing_weights_are_a_row_with_the_reason() -> None:
    result = run(
        suite="all",
        prompts=1,
        images=8,
        batches=(1,),
        guidance=(1.0,),
        top_k=(0,),
        temperatures=(1.0,),
        methods=("mulo-learned",),
    )
    row = result["rows"][1]
    assert "expected weights of t2i/upsampler" in row["failed"] and row["exact"] is None and row["seconds"] is None
    assert any("expected weights" in failure for failure in bench_failures(DOMAIN, result))
    assert "MuLo-SD, learned, threshold 0.05 failed in 1 of 1 requests" in markdown(DOMAIN.page(result), result)


def test_classes_are_judged_in_words() -> None:
    result = run(suite="quality", model="c2i", images=8, guidance=(1.0,), top_k=(0,), methods=("sjd-16",))
    assert [row["key"] for row in result["rows"]] == ["ar", "sjd-16"] and bench_failures(DOMAIN, result) == []


def test_methods_without_weights_in_the_zoo_have_no_row() -> None:
    keys = [method.key for method in ImageBenchConfig(model="c2i").rows]
    assert "sjd-16" in keys and not any(key.startswith(("eagle", "mulo")) for key in keys)
    with pytest.raises(ValueError, match="--methods: expected some of ar, .*, got 'eagle-tree'"):
        ImageBenchConfig(model="c2i", methods=("eagle-tree",))


def test_verdict_names_rows_that_differ() -> None:
    row = {
        "method": "m",
        "key": "sjd-16",
        "exact": True,
        "batch": 1,
        "guidance": 1.0,
        "top_k": 0,
        "temperature": 0.0,
        "failed": None,
    }
    assert "got them in 1 of 2" in bench_failures(DOMAIN, {"rows": [{**row, "identical": "1/2", "ties": 0}]})[0]
    assert not bench_failures(DOMAIN, {"rows": [{**row, "identical": "1/2", "ties": 1}]})
    assert not bench_failures(DOMAIN, {"rows": [{**row, "exact": False, "identical": "0/2", "ties": 0}]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"suite": "magic"},
        {"model": "vlm"},
        {"prompts": 0},
        {"images": 4},
        {"batches": (4,), "prompts": 2},
        {"guidance": ()},
        {"guidance": (-1.0,)},
        {"temperatures": (float("nan"),)},
        {"methods": ("magic",)},
        {"methods": ("ar", "")},
        {"batches": (1, 8), "prompts": 3},
        {"seed": -1},
        {"suite": "quality", "temperatures": (0.0,)},
        {"suite": "quality", "batches": (1,)},
        {"suite": "speed", "images": 200},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected .*, got .*, "):
        ImageBenchConfig(**wrong)


def test_an_empty_name_means_no_row() -> None:
    assert not any(method.named("") for suite in SUITES.values() for method in suite.methods)
    assert ImageMethod("mulo-0.05", "MuLo-SD", family="mulo").named("mulo")


@pytest.mark.parametrize(("prompts", "batches"), [(1, (1,)), (3, (1, 3)), (8, (1, 8)), (16, (1, 8))])
def test_batches_left_out_are_no_larger_than_the_prompts(prompts: int, batches: tuple[int, ...]) -> None:
    assert ImageBenchConfig(prompts=prompts).batches == batches


def test_suites_name_columns_and_methods_once() -> None:
    for suite in SUITES.values():
        keys = [method.key for method in suite.methods]
        assert len(set(keys)) == len(keys) and keys[0] == "ar"
        assert set(suite.columns) <= set(COLUMNS)
    swept = [method for method in SUITES["pareto"].methods if method.knob is not None]
    assert all(sum(other.family == one.family for other in swept) >= 5 for one in swept)
