"""`mmspec image` and `mmspec bench continuous` with models of continuous tokens, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.imagegen import MARPipeline
from mmspec.imagegen.continuous.mar.transformer import MAR
from tests.evaluate.tiny_continuous import causal, masked, use_tiny_continuous
from tests.house.tree import ROOT
from tests.imagegen.continuous.mar.test_captions import encode
from tests.imagegen.continuous.tiny import SIZES, autoencoder, redrawn

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_continuous(monkeypatch)
    monkeypatch.chdir(tmp_path)


def drawn(*arguments: str) -> dict:
    """The record of a picture that must succeed, whose screen line shows the record's figures."""
    result = runner.invoke(app, ["image", *arguments, "--json", "out.json"])
    assert result.exit_code == 0, (result.stderr, result.exception)
    record = json.loads(Path("out.json").read_text())
    for shown in (
        f"{record['seconds']} s",
        f"{record['step_compression']} values a pass",
        f"seed {record['seed']}",
        "(exact)" if record["exact"] else "(relaxed)",
        record["out"],
    ):
        assert shown in result.stdout
    assert Image.open(record["out"]).format == "PNG" and "top_k" not in record and "top-k" not in result.stdout
    return record


def refused(*arguments: str) -> str:
    result = runner.invoke(app, ["image", *arguments, "--out", "refused.png"])
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stdout == "" and not Path("refused.png").exists()
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("model", "options", "drafter", "exact"),
    [
        ("mar", (), "none", True),
        ("mar", ("--decoding", "auto"), "none", True),
        ("mar", ("--decoding", "head", "--window", "3"), "head window 3", True),
        ("mar", ("--decoding", "cspd"), "cspd patch 8", False),
        ("mar", ("--decoding", "cspd", "--window", "truncate", "--gamma", "3"), "cspd truncate 3", False),
        (
            "mar",
            ("--decoding", "stack", "--gamma", "4"),
            "cspd patch 4, annealed 4-2, checkerboard 1, lazy 5-9",
            False,
        ),
        ("mar", ("--decoding", "cspd", "--tolerance", "0"), "cspd truncate 8", True),
        ("car", (), "none", True),
        ("car", ("--decoding", "head"), "none", True),
        ("car", ("--decoding", "small", "--gamma", "2"), "small_causal_2", True),
        ("car", ("--decoding", "small", "--rule", "reflection"), "small_causal_4", True),
    ],
)
def test_every_decoding_draws(model: str, options: tuple, drafter: str, exact: bool) -> None:
    record = drawn("3", "--model", model, "--seed", "1", *options)
    assert (record["drafter"], record["exact"], record["model"]) == (drafter, exact, f"zoo {model}")
    assert record["plain_passes"] == (4 if model == "mar" else 16) and record["guidance"] == 2.0
    assert record.get("num_iter") == (4 if model == "mar" else None)


def test_own_draws_within_nothing_are_the_plain_picture() -> None:
    common = (
        "a red circle",
        "5",
        "--model",
        "mar",
        "--seed",
        "7",
        "--num-iter",
        "6",
        "--guidance",
        "3",
        "--temperature",
        "0.9",
    )
    plain = drawn(*common, "--out", "ar.png")
    same = drawn(*common, "--decoding", "cspd", "--tolerance", "0", "--out", "same.png")
    assert Path("ar.png").read_bytes() == Path("same.png").read_bytes()
    assert plain["num_iter"] == plain["target_passes"] == 6 and same["guidance"] == 3.0 and same["temperature"] == 0.9
    drawn(*common, "--decoding", "cspd", "--out", "other.png")
    assert Path("ar.png").read_bytes() != Path("other.png").read_bytes()


def test_a_grid_keeps_the_seed_of_each_place() -> None:
    common = ("1", "2", "--grid", "5", "--seed", "7", "--model", "mar")
    assert drawn(*common, "--batch", "5", "--out", "a.png")["images"] == 5
    drawn(*common, "--batch", "2", "--out", "b.png")
    assert Image.open("a.png").size == Image.open("b.png").size == (3 * 8 + 2 * 2, 2 * 8 + 2)


def test_models_in_folders_with_their_drafters() -> None:
    masked(classes=5).save_pretrained("big")
    masked(1, classes=5).save_pretrained("small")
    causal().save_pretrained("car")
    masked(pixels=False).save_pretrained("tokens")
    record = drawn("4", "--model", "big", "--decoding", "cspd", "--draft", "small", "--gamma", "4")
    assert record["model"] == "big" and record["drafter"] == "cspd patch 4"
    assert drawn("63", "--model", "car", "--decoding", "head")["exact"]
    assert "PROMPT: expected a label from 0 to 4, got 'a red circle'" in refused("a red circle", "--model", "big")
    assert "--draft: expected the folder of a smaller model" in refused("4", "--model", "big", "--decoding", "cspd")
    assert "--draft: expected a masked model" in refused("4", "--model", "big", "--decoding", "cspd", "--draft", "car")
    assert "--model: expected an autoencoder beside the model in tokens" in refused("4", "--model", "tokens")
    Path("big", "model_index.json").write_text('{"_class_name": "MARPipeline", "num_iter": "many"}')
    assert refused("4", "--model", "big").startswith(
        "Error: --model: expected a folder with a saved pipeline, got 'big' ("
    )


def test_captions_are_drawn_where_the_model_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = redrawn(MAR(replace(SIZES, class_num=64, caption_dim=6)))
    zoo = {"mar": MARPipeline(model, autoencoder(), encode, num_iter=4)}
    monkeypatch.setattr("mmspec.zoo.load", zoo.__getitem__)
    pictures = {}
    for prompt in ("two red stars", "a blue square above a cross", "red circle", "0"):
        drawn(prompt, "--model", "mar", "--seed", "3", "--out", "a.png")
        pictures[prompt] = Path("a.png").read_bytes()
    assert pictures["red circle"] == pictures["0"] and len(set(pictures.values())) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--decoding", "scd"), "--decoding: expected one of ar, head, cspd, stack, scheduled for zoo mar"),
        (("--decoding", "small"), "--decoding: expected one of ar, head, cspd, stack, scheduled for zoo mar"),
        (
            ("--top-k", "5"),
            "--top-k: expected a model of discrete tokens, got 'mar', whose tokens are continuous, leave --top-k out",
        ),
        (("--top-p", "0.5"), "--top-p: expected a model of discrete tokens"),
        (("--filter-order", "top_p_first"), "--filter-order: expected a model of discrete tokens"),
        (("--coupling", "gumbel"), "--coupling: expected a model of discrete tokens"),
        (("--drafter", "sjd"), "--drafter: expected a model of discrete tokens"),
        (("--rule", "reflection"), "--rule: expected options that --decoding ar takes (none of its own)"),
        (("--gamma", "4"), "--gamma: expected options that --decoding ar takes"),
        (("--decoding", "cspd", "--window", "8"), "window: expected patch or truncate or none, got '8'"),
        (("--decoding", "cspd", "--gamma", "0"), "--gamma: expected a number of at least 1, got 0"),
        (("--decoding", "cspd", "--tolerance", "-1"), "--tolerance: expected a number of at least 0, got -1"),
        (("--decoding", "cspd", "--tolerance", "0", "--window", "patch"), "tolerance: expected window 'truncate'"),
        (("--decoding", "head", "--window", "patch"), "window: expected a whole number, got 'patch'"),
        (("--decoding", "head", "--draft", "here"), "--draft: expected --decoding cspd or stack, got 'head'"),
        (("--num-iter", "0"), "--num-iter: expected a number of at least 1, got 0"),
        (("--model", "car", "--num-iter", "4"), "--num-iter: expected a masked model, got 'car'"),
        (
            ("--model", "car", "--decoding", "small", "--rule", "block"),
            "--rule: expected one of reflection, gaussian_block",
        ),
        (("--model", "c2i", "--gamma", "4"), "--gamma: expected a model of continuous tokens, got 'c2i'"),
        (("--model", "c2i", "--num-iter", "4"), "--num-iter: expected a model of continuous tokens"),
        (("--model", "c2i", "--window", "patch"), "--window: expected a number of values, got 'patch'"),
    ],
)
def test_inapplicable_options_are_refused(options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("3", "--model", "mar", *options)


def test_models_without_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["t2i"])
    assert "--model: expected weights of the zoo's mar, got none yet, name a folder" in refused("3", "--model", "mar")
    result = runner.invoke(app, ["bench", "continuous"])
    assert result.exit_code != 0 and "--model: expected weights of the zoo's mar, got none yet" in result.stderr


def test_bench_files_match_the_printed_table() -> None:
    asked = ("--prompts", "1", "--batch", "1", "--methods", "tolerance-0,cspd-patch-derived-4", "--threads", "1")
    files = ("--json", "bench.json", "--markdown", "bench.md")
    result = runner.invoke(app, ["bench", "continuous", *asked, "--guidance", "2", "--num-iter", "4", *files])
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert [row["key"] for row in rows] == ["ar", "cspd-patch-derived-4", "tolerance-0"]
    for row in rows:
        assert f"| {row['seconds']} |" in Path("bench.md").read_text() and row["num_iter"] == 4


@pytest.mark.whole
def test_vector_generation_imports_no_transformers() -> None:
    """Only the autoencoder's library does, where there are pixels."""
    code = (
        "import sys\n"
        "import mmspec.cli.image, mmspec.cli.pipelines, mmspec.run.continuous_models\n"
        "import mmspec.imagegen.continuous.mar.pipeline, mmspec.imagegen.continuous.causal.pipeline\n"
        "from tests.imagegen.continuous.tiny import SIZES, redrawn\n"
        "from mmspec.imagegen import CSpD, MARPipeline\n"
        "from mmspec.imagegen.continuous.mar.transformer import MAR\n"
        "pipe = MARPipeline(redrawn(MAR(SIZES)), num_iter=4)\n"
        "pipe([1], decoding=CSpD(pipe), pixels=False)\n"
        "print([name for name in ('transformers', 'diffusers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
