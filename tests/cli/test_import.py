"""`mmspec --import`: methods of a module or a file are known to every command, and what is no such module is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.evaluate.base.provenance import fingerprint
from mmspec.methods import find, modules, registry
from tests.evaluate.tiny_images import use_tiny_images
from tests.methods.test_one_file import COPIED, DECODING, RULE

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs a command in a folder with toys, whose modules and methods are forgotten after the test."""
    for name, text in {"toy_drafts": DECODING, "toy_rule": RULE, "toy_copies": COPIED}.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    use_tiny_images(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(modules, "_imported", {})

    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
        return done.exit_code, done.stdout, done.stderr

    return run


def test_a_decoding_of_a_file_is_listed_shown_and_offered(invoke: Invoke) -> None:
    assert "toydrafts" not in invoke("image", "--help")[1]
    assert "windows of three" in invoke("--import", "toy_drafts.py", "methods")[1]
    assert "The values of a pass" in invoke("--import", "toy_drafts", "methods", "toydrafts")[1]
    code, _, said = invoke("--import", "toy_drafts.py", "image", "a red circle", "--decoding", "nonsense")
    assert code == 2 and "expected one of" in said and "toydrafts" in said
    assert "toydrafts" in invoke("--import", "toy_drafts.py", "image", "--help")[1]
    assert modules.imported() == (str(Path("toy_drafts.py").resolve()), "toy_drafts")


def test_a_decoding_and_a_rule_of_two_files_draw(invoke: Invoke) -> None:
    both = ("--import", "toy_drafts.py", "--import", "toy_rule", "image", "a red circle")
    greedy = (*both, "--temperature", "0", "--decoding")
    for name in ("ar", "toydrafts"):
        assert invoke(*greedy, name, "--out", f"{name}.png", "--json", f"{name}.json")[0] == 0
    toy = json.loads(Path("toydrafts.json").read_text())
    assert toy["exact"] and toy["decoding"] == "toydrafts"
    assert Image.open("ar.png").tobytes() == Image.open("toydrafts.png").tobytes()
    assert invoke(*both, "--decoding", "toydrafts:window=4", "--rule", "toyrule:boost=1", "--json", "r.json")[0] == 0
    relaxed = json.loads(Path("r.json").read_text())
    assert not relaxed["exact"] and relaxed["target_passes"] < 16


def test_a_drafter_of_a_file_is_supported(invoke: Invoke) -> None:
    assert "two tokens of the text so far" in invoke("--import", "toy_copies.py", "supported", "--all")[1]


@pytest.mark.whole
def test_workers_of_a_sweep_import_it_too(invoke: Invoke) -> None:
    """In processes of their own, which know nothing of what this one has imported."""
    words = (
        "--import",
        "toy_drafts.py",
        "evaluate",
        "run",
        "--model",
        "t2i",
        "--decoding",
        "toydrafts",
        "--count",
        "2",
    )
    command = [sys.executable, "-m", "mmspec", *words, "--workers", "2", "--no-report"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for file in Path("run").rglob("*.jsonl") for line in file.read_text().splitlines()]
    samples = [line for line in lines if line["kind"] == "sample" and line["key"] and "toydrafts" in json.dumps(line)]
    assert len(samples) == 2 and all(sample["failed"] is None for sample in samples)


def test_a_changed_module_is_other_code(invoke: Invoke) -> None:
    before = fingerprint()
    assert invoke("--import", "toy_drafts.py", "methods")[0] == 0
    imported = fingerprint()
    Path("toy_drafts.py").write_text(DECODING + "\n# changed\n")
    assert len({before, imported, fingerprint()}) == 3


@pytest.mark.whole
def test_a_rule_of_a_file_is_certified_in_a_process_of_its_own(invoke: Invoke) -> None:
    code, said, _ = invoke("--import", "toy_rule.py", "certify", "mmspec.certify.rules:toyrule", "--probes", "100")
    assert code == 1 and "not exact" in said


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("absent.py", None, "expected a module or the path of a .py file, got 'absent.py', which is not found"),
        ("toys.absent", None, "got 'toys.absent', which is not found"),
        ("broken.py", "1 / 0", "got ZeroDivisionError (division by zero) in"),
        ("broken", "import toys_that_are_absent", "got ModuleNotFoundError (No module named 'toys_that_are_absent')"),
        ("leaving.py", "raise SystemExit(3)", "got SystemExit (3)"),
        ("empty.py", "x = 1", "expected a module that describes a method, got none in 'empty.py'"),
        ("json.py", DECODING, "expected a file whose name no module has, got 'json.py'"),
        (
            "taken.py",
            DECODING.replace('"toydrafts"', '"scd"'),
            "no other decoding has, got 'scd', which is that of mmspec",
        ),
    ],
)
def test_invalid_method_modules_are_refused(name: str, text: str | None, wanted: str, invoke: Invoke) -> None:
    if text is not None:
        Path(f"{name.removesuffix('.py')}.py").write_text(text)
    code, _, said = invoke("--import", name, "methods")
    (line,) = said.splitlines()
    assert code == 2 and line.startswith("Error: --import: ") and wanted in line
    assert modules.imported() == ()
    sys.modules.pop("taken" if name == "taken.py" else "empty", None)


def test_a_module_that_is_known_already_is_not_imported_again(invoke: Invoke) -> None:
    Path("counting.py").write_text(DECODING + "\nprint('imported')\n")
    try:
        said = [
            invoke("--import", name, "methods", "toydrafts")[1] for name in ("counting.py", "counting.py", "counting")
        ]
        assert [text.count("imported") for text in said] == [1, 0, 0]
        assert find("toydrafts").home == "counting:toy_drafts"
    finally:
        del sys.modules["counting"]
