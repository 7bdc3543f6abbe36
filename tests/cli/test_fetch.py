"""`mmspec zoo fetch`, `list` and `remove`, and `mmspec convert` of GGUF files, as a user types them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.zoo.files.table import MODELS, PublishedFile
from tests.io.tiny_gguf import write_gguf

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra `real`")
MEMBER = "tiny_words/tiny.gguf"


def run(code: int, *words: str) -> str:
    """What a command prints: stdout where it succeeds, else its one sentence."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.output, result.exception)
    if code:
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    return result.stderr if code else result.stdout


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model, which the zoo can fetch as "tiny"; the current folder and the cache are the test's own."""
    gguf = write_gguf(tmp_path / "tiny.gguf", "qwen2", kinds=("Q4_0",))
    content = gguf.read_bytes()
    source = PublishedFile("tiny-words", "0.1", MEMBER, len(content), hashlib.sha256(content).hexdigest(), "MIT")
    monkeypatch.setitem(MODELS, "tiny", replace(MODELS["smollm2"], about="tiny words", auto="", source=source))
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with ZipFile(tmp_path / "tiny.whl", "w") as archive:
        archive.write(gguf, MEMBER)
    return tmp_path / "tiny.whl"


def listed(name: str) -> dict:
    run(0, "zoo", "list", "--json", "zoo.json")
    return next(record for record in json.loads(Path("zoo.json").read_text()) if record["name"] == name)


def test_a_model_is_listed_fetched_listed_with_its_size_and_removed(wheel: Path, tmp_path: Path) -> None:
    before = listed("tiny")
    assert not before["available"] and "tiny-words==0.1" in before["what"] and "MIT" in before["what"]
    table = run(0, "zoo", "list")
    assert "run `mmspec zoo fetch tiny`" in table and "run `mmspec zoo fetch smollm2`" in table
    assert f"tiny: written to {tmp_path}/cache/models/tiny (" in run(0, "zoo", "fetch", "tiny", "--from", str(wheel))
    assert "tiny: lies in" in run(0, "zoo", "fetch", "tiny")
    after = listed("tiny")
    size = sum(path.stat().st_size for path in (tmp_path / "cache" / "models" / "tiny").iterdir())
    assert after["available"] and after["megabytes"] == round(size / 1e6, 1) > 0 and after["parameters"] > 0
    assert "run `mmspec zoo fetch tiny`" not in run(0, "zoo", "list")
    assert "tiny: removed from" in run(0, "zoo", "remove", "tiny")
    assert not listed("tiny")["available"]


def test_names_and_files_that_do_not_fit_are_refused(wheel: Path) -> None:
    for command in ("fetch", "remove"):
        assert "NAME: expected one of smollm2" in run(2, "zoo", command, "vlm")
    assert "expected a fetched model, got tiny" in run(1, "zoo", "remove", "tiny")
    assert "smollm2==" in run(1, "zoo", "fetch", "smollm2", "--from", str(wheel))
    assert "got none there" in run(1, "zoo", "fetch", "tiny", "--from", "nowhere.whl")


def test_a_gguf_file_needs_no_kind_and_its_folder_is_an_argument_or_an_option(wheel: Path) -> None:
    run(0, "convert", "tiny.gguf", "--out", "one")
    run(0, "convert", "tiny.gguf", "two")
    Path("tiny.gguf").rename("without-suffix")
    run(0, "convert", "without-suffix", "three", "--dtype", "bfloat16")
    run(0, "convert", "without-suffix", "--out", "four", "--kind", "gguf")
    one, two, three, four = (load_file(f"{name}/model.safetensors") for name in ("one", "two", "three", "four"))
    assert all(torch.equal(one[name], two[name]) and torch.equal(one[name], four[name]) for name in one)
    assert all(torch.equal(value, one[name].bfloat16()) for name, value in three.items())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("tiny.gguf",), "OUT: expected one folder to write, as argument or as --out, got none"),
        (
            ("tiny.gguf", "a", "--out", "b"),
            "OUT: expected one folder to write, as argument or as --out, got 'a' and 'b'",
        ),
        (("tiny.whl", "a"), "--kind: expected one of llamagen, mar, wan, reward, gguf, got none"),
        (("tiny.gguf", "a", "--heads", "2"), "--heads: expected another kind than gguf"),
        (("none.gguf", "a"), "none.gguf: expected a GGUF file, got none there"),
        (
            ("tiny.whl", "a", "--kind", "gguf"),
            "tiny.whl: expected a GGUF file, got a file that does not begin with GGUF",
        ),
        (("tiny.gguf", "no/such/folder"), "expected an existing folder for 'no/such/folder'"),
        (("tiny.gguf", "cache"), "expected a new or empty folder to write to, got 'cache'"),
    ],
)
def test_invalid_convert_arguments_are_refused(words: tuple[str, ...], sentence: str, wheel: Path) -> None:
    Path("cache").mkdir()
    Path("cache/mine").touch()
    assert sentence in run(2, "convert", *words)
    assert not Path("a").exists() and not Path("b").exists()
