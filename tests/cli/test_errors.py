"""Bad input: one sentence on stderr, an exit code, nothing half-written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.console import check_writable
from tests.evaluate.tiny_zoo import tiny_zoo, use_tiny_zoo

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "picture.png"
    Image.new("RGB", (16, 16), "navy").save(path)
    return str(path)


def refused(code: int, *arguments: str) -> str:
    """The one line of stderr of a command that must end with `code` and print nothing."""
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def test_a_missing_picture() -> None:
    line = refused(2, "caption", "nowhere.png")
    assert "got 'nowhere.png' (no such file)" in line and "mmspec zoo scene --out scene.png" in line


def test_a_full_device_memory_is_a_sentence(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has none")

    use_tiny_zoo(monkeypatch)
    monkeypatch.setattr("mmspec.generate", full, raising=False)
    assert "--device: expected enough memory, got 'CUDA out of memory'" in refused(1, "caption", picture)


def test_a_corrupt_picture_beside_a_valid_picture_is_refused(picture: str, tmp_path: Path) -> None:
    bad, out = tmp_path / "bad.png", tmp_path / "out.json"
    bad.write_bytes(Path(picture).read_bytes()[:60])
    assert "damaged or truncated" in refused(2, "caption", picture, str(bad), "--json", str(out))
    assert not out.exists()


def test_something_that_is_no_picture(tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("hello")
    assert "expected PNG, JPEG or WebP" in refused(2, "caption", str(text))


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--drafter", "magic", "expected one of auto, eagle, "),
        ("--max-new-tokens", "-3", "expected a number of at least 1, got -3"),
        ("--max-new-tokens", "0", "expected a number of at least 1, got 0"),
        ("--temperature", "-0.5", "expected a number of at least 0, got -0.5"),
        ("--temperature", "nan", "expected a number of at least 0, got nan"),
        ("--seed", "-1", "expected a number of at least 0, got -1"),
        ("--drafter", "vlm/magic", "expected one of auto, eagle, "),
        ("--model", "nowhere", "expected 'zoo', a folder or a hub id"),
        ("--model", "vlm/eagle", "expected a model that writes text, got the zoo's 'vlm/eagle'"),
        ("--json", "no/such/folder/out.json", "expected an existing folder"),
        ("--json", ".", "expected a file name to write to, got the folder '.'"),
    ],
)
def test_a_refused_option_is_a_usage_error(option: str, value: str, sentence: str, picture: str) -> None:
    assert sentence in refused(2, "caption", picture, option, value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--prompts", "0"),
        ("--batch", "x"),
        ("--batch", "64"),
        ("--batch", ""),
        ("--methods", "magic"),
        ("--methods", "plain,"),
        ("--methods", ""),
        ("--temperature", "-1"),
        ("--seed", "-1"),
        ("--suite", "magic"),
        ("--drafter-path", "no-folder"),
        ("--drafter-path", "name=no/such/folder"),
        ("--plot", "curve.png"),
    ],
)
def test_a_refused_bench(option: str, value: str) -> None:
    assert f"{option}: expected" in refused(2, "bench", "vlm", option, value)


def test_saved_drafters_are_read_before_a_bench_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    monkeypatch.setattr("mmspec.evaluate.engine.bench.bench", lambda *a, **k: pytest.fail("the bench began"))
    line = refused(2, "bench", "vlm", "--suite", "drafters", "--drafter-path", f"mine={tmp_path}")
    assert "expected config.json" in line


def test_files_in_the_place_of_folders(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    assert "File exists" in refused(2, "demo", "--folder", str(file))
    assert "--out: expected a folder" in refused(2, "train", "vlm-drafter", "--kind", "msd", "--out", str(file))
    assert "expected lines with 'accept_length'" in refused(2, "bench", "curves", f"mine={file}")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder that nobody can write to")
@pytest.mark.parametrize("arguments", [("supported",), ("zoo", "list"), ("bench", "vlm")])
def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(arguments: tuple[str, ...]) -> None:
    assert "expected a file that can be written, got '/proc/x.json' (" in refused(
        2, *arguments, "--json", "/proc/x.json"
    )


def test_a_name_too_long_for_the_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    name = str(tmp_path / ("x" * 250 + ".json"))
    assert "expected a file that can be written" in refused(2, "supported", "--json", name)


def test_a_check_leaves_nothing_behind_and_keeps_the_old_file(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    check_writable(old, None, tmp_path / "new.json")
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old"


def test_two_outputs_to_the_same_file_are_refused(tmp_path: Path) -> None:
    one, same = tmp_path / "one.md", tmp_path / ".." / tmp_path.name / "one.md"
    line = refused(2, "bench", "vlm", "--json", str(one), "--markdown", str(same))
    assert "expected a file of its own for every output" in line and not one.exists()


def test_a_model_that_does_not_exist(picture: str) -> None:
    assert "expected 'zoo', a folder or a hub id" in refused(2, "caption", picture, "--model", "no/such/model")


def test_a_folder_without_a_model(picture: str, tmp_path: Path) -> None:
    assert "model that takes pictures and text" in refused(2, "caption", picture, "--model", str(tmp_path))


@pytest.mark.parametrize(("file", "contents"), [("config.json", b"[1]"), ("model.safetensors", b"cut")])
def test_a_damaged_model(file: str, contents: bytes, picture: str, tmp_path: Path) -> None:
    model, processor = tiny_zoo()["vlm"]
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / file).write_bytes(contents)
    line = refused(2, "caption", picture, "--model", str(tmp_path / "model"))
    assert line.startswith("Error: --model: expected a safetensors model that takes pictures and text, got ")


def test_a_folder_without_a_drafter(picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    (tmp_path / "empty").mkdir()
    assert "expected config.json" in refused(2, "caption", picture, "--drafter", str(tmp_path / "empty"))


def test_a_placeholder_in_the_prompt(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiny_zoo(monkeypatch)
    assert "placeholder" in refused(2, "caption", picture, "--prompt", "<image> and what else?")


def test_missing_weights_say_how_to_build_them(picture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mmspec.zoo.files.registry.WEIGHTS", tmp_path)
    assert "mmspec zoo build vlm" in refused(1, "caption", picture)


def test_unknown_names_to_build() -> None:
    assert "expected one of vlm" in refused(2, "zoo", "build", "magic")
    assert "--device" in refused(2, "zoo", "build", "vlm", "--device", "abacus")


def test_nan_logits_keep_the_text_so_far_and_write_nothing(
    picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiny_zoo(monkeypatch)
    model, _ = tiny_zoo()["vlm"]
    calls = []

    def spoil(module: object, args: tuple, output: object) -> object:
        calls.append(1)
        return output * float("nan") if len(calls) == 4 else output

    hook = model.lm_head.register_forward_hook(spoil)
    out = tmp_path / "out.json"
    try:
        result = runner.invoke(app, ["caption", picture, "--drafter", "none", "--json", str(out)])
    finally:
        hook.remove()
    assert result.exit_code == 1 and "NaN or Inf after 3 generated tokens" in result.stderr
    assert result.stdout.strip() and not out.exists()


def test_every_help_text_arrives_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square brackets are markup to the renderer: "[eval]" would vanish."""
    import click
    from rich.text import Text
    from typer.main import get_command

    monkeypatch.setenv("COLUMNS", "800")

    def commands(command: click.Command, path: tuple[str, ...]) -> None:
        shown = runner.invoke(app, [*path, "--help"]).stdout
        for text in (command.help, *(getattr(parameter, "help", None) for parameter in command.params)):
            for line in (text or "").replace("\\[", "[").split("\n"):
                # names of methods are put in when the help is shown
                for part in re.split(r"\{\w+\}", line):
                    assert part.strip() in shown, (path, line)
        assert not [name for name in getattr(command.callback, "texts", ()) if f"{{{name}}}" in shown]
        for name, inner in getattr(command, "commands", {}).items():
            commands(inner, (*path, name))

    commands(get_command(app), ())
    assert "mmspec[eval]" in runner.invoke(app, ["bench", "vlm", "--help"]).stdout
    assert Text.from_markup("mmspec[eval]").plain != "mmspec[eval]"
