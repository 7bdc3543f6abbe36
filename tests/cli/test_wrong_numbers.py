"""Options that no command can use are refused by name before anything is loaded or drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()
SCALES = ("nan", "inf", "1e30", "-1")
IMAGE = ("image", "a red circle", "--out", "refused.png")
VIDEO = ("video", "a red circle", "--out", "refused.mp4")
CODES = (*VIDEO, "--model", "video/tokens")
# a command -> its options, each with values that it cannot take
OPTIONS: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    IMAGE: {
        "--guidance": SCALES,
        "--temperature": ("nan", "inf", "-1"),
        "--top-p": ("nan", "0", "2"),
        "--top-k": ("nan", "1.5", "-1"),
        "--seed": ("nan", "1.5", "-1"),
        "--grid": ("0", "True"),
        "--batch": ("0", "nan"),
        "--window": ("nan", "1.5"),
    },
    (*IMAGE, "--model", "mar"): {
        "--temperature": SCALES,
        "--guidance": SCALES,
        "--gamma": ("nan", "0"),
        "--tolerance": ("nan", "inf", "-1"),
        "--num-iter": ("nan", "0"),
    },
    VIDEO: {
        "--blocks": ("nan", "0", "True"),
        "--fps": SCALES,
        "--size": ("nanx8", "8"),
        "--seed": ("nan", "-1"),
        "--switch": ("nan=a circle", "0=a circle"),
    },
    (*VIDEO, "--decoding", "sdvg"): {
        "--threshold": ("nan",),
        "--router": ("strided:budget=nan", "explore:rate=nan", "hybrid:run=nan,least=0", "relative:margin=nan"),
    },
    CODES: {"--guidance": SCALES, "--temperature": ("nan", "inf", "-1"), "--top-p": ("nan", "0"), "--top-k": ("-1",)},
    ("evaluate", "refused", "--model", "t2i", "--count", "2"): {"--guidance": SCALES, "--temperature": ("nan", "-1")},
    ("bench", "image"): {"--guidance": SCALES, "--temperature": ("nan", "-1")},
    ("bench", "continuous"): {"--guidance": SCALES, "--temperature": ("nan", "-1")},
    ("bench", "vlm"): {"--temperature": ("nan", "-1")},
}
# the default lane runs the first value of every option
CASES = [
    pytest.param(command, option, value, marks=[pytest.mark.whole] if number else [])
    for command, options in OPTIONS.items()
    for option in options
    for number, value in enumerate(options[option])
]


@pytest.mark.parametrize(("command", "option", "value"), CASES, ids=lambda one: one if isinstance(one, str) else one[0])
def test_a_number_that_no_request_can_use(
    command: tuple[str, ...], option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, [*command, f"{option}={value}"])
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert option.removeprefix("--") in result.stderr and "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", (IMAGE, VIDEO, CODES), ids=lambda one: " ".join(one[::4]))
def test_prompts_of_unknown_words(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, [command[0], "zebra", *command[2:]])
    assert result.exit_code == 2 and "prompts: expected words this model knows, got none in 'zebra'" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ("words.txt", "words.png"))
def test_a_text_file_is_no_picture(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a red circle\n" * 40)
    result = runner.invoke(app, ["caption", str(tmp_path / name)])
    assert result.exit_code == 2 and f"{name}: expected PNG, JPEG or WebP" in result.stderr


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("model", ("c2i", "mar", "car"))
@pytest.mark.parametrize("label", ("-1", "True", "nan", "1.0", "64"))
def test_labels_that_a_model_does_not_have(
    model: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["image", "--model", model, "--out", "refused.png", "--", label])
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith(("Error: PROMPT: expected ", "Error: prompts: expected ")) and not list(tmp_path.iterdir())
