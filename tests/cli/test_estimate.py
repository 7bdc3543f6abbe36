"""`mmspec estimate`: tables and files, acceptance from each source, and one sentence for every wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mmspec.cli import app

pytestmark = pytest.mark.usefixtures("built_once")

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 200,
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_an_estimate_is_shown_and_written_as_not_measured(folder: Path) -> None:
    file = folder / "out.json"
    result = run(folder, "--acceptance", "0.8,0.7", "--length", 3, "--device", "l4", "--json", file)
    assert result.exit_code == 0, result.output
    record = json.loads(file.read_text())
    assert record["label"] == "estimate, not measured" in result.output and "simulated" in result.output
    assert record["chosen"]["length"] == 3 and record["chosen"]["tokens"] == pytest.approx(1 + 0.8 + 0.56 + 0.392)
    assert record["weights_bytes"] == 2 * (2 * 200 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 160 + 2 * 64) + 64)
    assert record["device"] == "l4" and "data sheet" in record["source"] and record["assumed"]


def test_the_curves_are_drawn(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    file = folder / "out.png"
    assert run(folder / "config.json", "--acceptance", "0.8", "--plot", file).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_acceptance_comes_from_a_bench_its_records_or_a_paper(folder: Path) -> None:
    rows = [
        {"key": "plain", "method": "plain", "accept_length": 1.0},
        {"key": "a", "method": "A", "accept_length": 2.5},
        {"key": "b", "method": "B", "accept_length": 2.0},
    ]
    bench, records, out = folder / "bench.json", folder / "records.jsonl", folder / "out.json"
    bench.write_text(json.dumps({"rows": rows}))
    lines = [
        {"accepted": [0, 1, 2, 0, 1], "of": {"decoding": "a"}},
        {"accepted": [0, 0], "of": {"decoding": "plain"}},
        {},
    ]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = {
        ("--bench", bench, "--row", "a"): 2.5,
        ("--bench", records): 2.0,
        ("--accept-length", 3, "--label", "a paper"): 3.0,
    }
    for source, tokens in wanted.items():
        result = run(folder, *source, "--length", 2, "--json", out)
        assert result.exit_code == 0, result.output
        assert json.loads(out.read_text())["chosen"]["tokens"] == pytest.approx(tokens, abs=1e-6)
    assert json.loads(out.read_text())["acceptance"]["source"].endswith("a paper")
    assert json.loads(out.read_text())["acceptance"]["chances"] == pytest.approx([1.0])


def test_a_video_model_is_estimated_by_its_blocks(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert run("wan-14b", "--acceptance", "0.7", "--json", file).exit_code == 0
    assert 1 < json.loads(file.read_text())["speedup"] < 3
    assert run("wan-14b", "--acceptance", "0.7,0.6").exit_code == 2


WRONG = {
    "no curve": ((), "--acceptance: expected one of .* got none"),
    "two curves": (("--acceptance", "0.5", "--accept-length", "2"), "got --acceptance and --accept-length"),
    "no chance": (("--acceptance", "1.5"), "expected chances from 0 to 1"),
    "no number": (("--acceptance", "high"), "expected numbers separated by commas"),
    "an impossible length": (("--accept-length", "9", "--length", "3"), "expected 1 to 4 of drafts of 3 levels"),
    "an unknown device": (("--acceptance", "0.5", "--device", "tpu"), "--device: expected one of h100, .* got 'tpu'"),
    "an unknown dtype": (("--acceptance", "0.5", "--dtype", "int4"), "--dtype: expected one of .* got 'int4'"),
    "a dtype without figures": (("--acceptance", "0.5", "--dtype", "int8"), "--dtype: expected one of .* got 'int8'"),
    "an unknown drafter": (("--acceptance", "0.5", "--drafter", "egle"), "did you mean 'eagle'"),
    "a drafter without its model": (("--acceptance", "0.5", "--drafter", "small"), "expected a model for small"),
    "pictures for a text model": (("--acceptance", "0.5", "--pictures", "1"), "--pictures: expected 0"),
    "a tree for chains": (
        ("--acceptance", "0.5", "--drafter", "lookup", "--length", "2", "--tree", "9"),
        "--tree: expected",
    ),
    "a tree without levels": (("--acceptance", "0.5", "--tree", "9"), "--tree: expected it with --length"),
    "a row without a bench": (("--acceptance", "0.5", "--row", "a"), "--row: expected it with --bench"),
    "a label without a figure": (("--acceptance", "0.5", "--label", "a"), "--label: expected it with --accept-length"),
    "timed passes elsewhere": (("--acceptance", "0.5", "--timed-passes"), "--timed-passes: expected --device here"),
    "a missing bench": (("--bench", "none.json"), "expected a JSON file, got none there"),
    "a page of one estimate": (("--acceptance", "0.5", "--markdown", "page.md"), "--markdown: expected it with"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_ends_in_a_sentence(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    options, sentence = WRONG[name]
    result = run(folder, *options)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: ")
    assert re.search(sentence, lines[0]), lines[0]


@pytest.mark.parametrize("model", ["nothing-there", "car"])
def test_an_unknown_model_is_refused(model: str) -> None:
    result = run(model, "--acceptance", "0.5")
    assert result.exit_code == 2 and result.stderr.startswith("Error: MODEL: expected a")


def test_a_model_has_to_be_named() -> None:
    assert "got none, name one" in run("--acceptance", "0.5").stderr


def test_a_row_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / "bench.json").write_text(json.dumps({"rows": [{"key": "a", "method": "A", "accept_length": 2.0}]}))
    result = run(folder, "--bench", folder / "bench.json", "--row", "z", "--length", 4)
    assert result.exit_code == 2 and "--row: expected one of a in" in result.stderr


@pytest.mark.whole
def test_the_page_of_published_models_matches_the_command_output(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    assert run("--published", "--markdown", file).exit_code == 0
    page = Path(__file__).parents[2] / "docs" / "estimate.md"
    assert file.read_text() in page.read_text()
