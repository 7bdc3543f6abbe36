"""`--device` and `--dtype`: a single helper for all commands, and a sentence for a device that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.console import BadOption
from mmspec.cli.options import placement_of
from mmspec.evaluate.engine.registry import DOMAINS
from mmspec.run.placement import Placement
from tests.evaluate.tiny_images import use_tiny_images
from tests.evaluate.tiny_video import use_tiny_video
from tests.evaluate.tiny_zoo import use_tiny_zoo

PLACED = ("caption", "image", "video", "demo", "evaluate", *(f"bench {name}" for name in DOMAINS))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_auto_takes_a_gpu_and_numbers_name_others() -> None:
    devices = [placement_of(name).device for name in ("auto", "cpu", "cuda", "cuda:1")]
    assert devices == ["cuda", "cpu", "cuda", "cuda:1"]
    with pytest.raises(
        BadOption, match=r"--device: expected an available .* got 'cuda:2' \(available: cuda:0, cuda:1\)"
    ):
        placement_of("cuda:2")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert placement_of("auto", "bfloat16") == Placement("cpu", "bfloat16")
    with pytest.raises(BadOption, match=r"got 'cuda' \(available: none\), use --device cpu"):
        placement_of("cuda")


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:x", "CUDA", ""])
def test_another_form_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="--device: expected one of auto, cpu, cuda or cuda:N"):
        placement_of(name)


def test_a_model_moves_only_where_it_has_to() -> None:
    class Still:
        def to(self, **place: object) -> object:
            raise AssertionError("moved")

    assert isinstance(Placement("cpu").moved(Still()), Still)
    layer = Placement("cpu", "bfloat16").moved(torch.nn.Linear(2, 2))
    assert layer.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", PLACED)
def test_commands_that_load_a_model_have_both_options(name: str) -> None:
    command = get_command(app)
    for word in name.split():
        command = command.commands[word]
    options = {flag for param in command.params for flag in param.opts}
    assert {"--device", "--dtype"} <= options


@pytest.mark.parametrize(
    "words",
    [
        ("caption", "a.png"),
        ("image", "a red circle"),
        ("video", "a red circle"),
        ("demo",),
        ("bench", "image"),
        ("evaluate", "run"),
    ],
)
@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--device", "abacus", "--device: expected one of auto, cpu, cuda or cuda:N, got 'abacus', choose one"),
        ("--dtype", "int4", "--dtype: expected one of auto, float32, bfloat16, float16, got 'int4'"),
    ],
)
def test_a_wrong_place_is_one_sentence(
    words: tuple[str, ...], option: str, value: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (16, 16)).save("a.png")
    result = CliRunner().invoke(app, [*words, option, value])
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2 and sentence in line and result.stdout == ""


def test_models_compute_in_the_precision_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((24, 24), 60).convert("RGB").save("a.png")
    placed = ("--device", "cpu", "--dtype", "bfloat16", "--json", "out.json")
    try:
        for use, words in (
            (use_tiny_zoo, ("caption", "a.png", "--max-new-tokens", "5")),
            (use_tiny_images, ("image", "a red circle", "--decoding", "eagle")),
            (use_tiny_video, ("video", "a red circle", "--decoding", "sdvg", "--threshold", "-inf", "--out", "a.gif")),
        ):
            with pytest.MonkeyPatch.context() as patch:
                use(patch)
                result = CliRunner().invoke(app, [*words, *placed])
            assert result.exit_code == 0, (words, result.stderr, result.exception)
            assert json.loads(Path("out.json").read_text())["seconds"] > 0
    finally:
        for make in ("tiny_zoo.tiny_zoo", "tiny_images.tiny_image_zoo", "tiny_video.tiny_video_zoo"):
            forget(make)


def forget(make: str) -> None:
    """Tiny models that a test has cast are made anew for the next."""
    from importlib import import_module

    module, _, name = make.partition(".")
    getattr(import_module(f"tests.evaluate.{module}"), name).cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU")
@pytest.mark.parametrize(
    "words",
    [
        ("caption", "a.png", "--max-new-tokens", "8", "--compare"),
        ("caption", "a.png", "--max-new-tokens", "8", "--drafter", "small", "--dtype", "bfloat16"),
        ("image", "a large red star", "--decoding", "scd"),
        ("image", "a large red star", "--decoding", "eagle"),
        ("image", "a large red star", "--decoding", "mulo"),
        ("image", "a large red star", "--decoding", "lantern"),
        ("image", "red star", "--model", "mar", "--decoding", "cspd", "--num-iter", "8"),
        ("image", "red star", "--model", "car", "--decoding", "head"),
        ("video", "a red circle moves to the right", "--out", "a.gif"),
        ("video", "a red circle", "--decoding", "sdvg", "--threshold", "0.3", "--blocks", "3", "--out", "a.gif"),
        ("demo", "--max-new-tokens", "8"),
        ("bench", "vlm", "--prompts", "1", "--batch", "1", "--new-tokens", "8", "--methods", "eagle,lookup"),
        ("bench", "image", "--suite", "speed", "--prompts", "1", "--batch", "1", "--methods", "scd-gumbel-32"),
        ("bench", "continuous", "--prompts", "1", "--batch", "1", "--num-iter", "8", "--methods", "head-1"),
        ("bench", "video", "--suite", "tokens", "--prompts", "1", "--repeats", "1", "--methods", "scd-64"),
        ("evaluate", "run", "--count", "2", "--model", "t2i", "--decoding", "scd", "--no-report"),
    ],
    ids=" ".join,
)
def test_the_zoos_models_run_on_a_gpu(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((96, 96), 60).convert("RGB").save("a.png")
    result = CliRunner().invoke(app, [*words, "--device", "cuda"])
    assert result.exit_code == 0, (result.stderr, result.exception)
