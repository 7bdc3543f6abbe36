"""The bench of a GPU: its steps run on a CPU when they are small, and a cost is labelled as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli.bench import app
from mmspec.evaluate.machine.gpu_bench import COST, STEPS, run, shown
from mmspec.evaluate.machine.published_decoders import NAMES, cached_decoder
from mmspec.evaluate.machine.trained_models import AGAINST, BASELINES, GpuImageSizes, GpuVlmSizes, image_recipe
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.zoo.architectures.llava import new_model, new_tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_over_a_chain_matches_passes_over_single_values(name: str) -> None:
    model = cached_decoder(name, torch.device("cpu"), torch.float32, 12, True)
    alone, several = model.score(1), model.score(4)
    assert several.shape[1] == 4 and model.parameters > 1000
    torch.testing.assert_close(several[:, :1], alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.score(1), alone)  # no pass is committed


def test_the_curve_of_every_shape_starts_at_1() -> None:
    rows = run("cpu", tiny=True, repeats=1, steps=("cost",))["rows"]
    assert [row["model"] for row in rows] == list(NAMES)
    for row in rows:
        assert row["cost"].keys() == {"1", "2", "4"} and row["cost"]["1"] == 1 and row["label"] == COST
        assert row["milliseconds"] is None and "cost only" in shown(row)["what"]


@pytest.mark.whole
def test_models_trained_on_the_spot_meet_their_baselines() -> None:
    found = run("cpu", tiny=True, steps=("vlm", "image"))["rows"]
    for step in ("vlm", "image"):
        mine = [row for row in found if row["step"] == step]
        assert not any(row["failed"] for row in mine) and len({row["method"] for row in mine}) >= 3
        for row in mine:
            assert row["seconds"] is None and all(row[f"speedup_vs_{name}"] > 0 for name in BASELINES[step])
            assert row["identical"] == ("1/1" if row["temperature"] == 0 else None)
            assert all(field in row for field in AGAINST[step]) and row["method"] in shown(row)["what"]
    captured = [row for row in found if row["method"].endswith("captured")]
    assert captured and {row["accept_length"] for row in captured} != {None}


@pytest.mark.whole
def test_the_models_to_train_are_of_100_million_parameters() -> None:
    with torch.device("meta"):
        text = sum(parameter.numel() for parameter in new_model(new_tokenizer(), GpuVlmSizes().size).parameters())
        image = sum(parameter.numel() for parameter in Transformer(image_recipe(GpuImageSizes()).config).parameters())
    assert 1e8 < text < 2e8 and 1e8 < image < 2e8


def test_all_steps_go_into_one_file(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    result = CliRunner().invoke(
        app, ["gpu", "--device", "cpu", "--tiny", "--repeats", "1", "--steps", "kernels,cost", "--json", str(file)]
    )
    assert result.exit_code == 0, result.output
    kept = json.loads(file.read_text())
    assert list(dict.fromkeys(row["step"] for row in kept["rows"])) == ["kernels", "cost"]
    assert "not yet measured" in result.stdout


def test_a_stop_keeps_the_finished_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> list[dict]:
        raise KeyboardInterrupt

    monkeypatch.setitem(STEPS, "cost", stopped)
    file = tmp_path / "gpu.json"
    words = ["gpu", "--device", "cpu", "--tiny", "--repeats", "1", "--steps", "kernels,cost", "--json", str(file)]
    assert CliRunner().invoke(app, words).exit_code != 0
    saved = json.loads(file.read_text())
    assert saved["rows"] and {row["step"] for row in saved["rows"]} == {"kernels"} and saved["env"]["finished"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cpu"), "--device: expected a GPU, got cpu; add --tiny to see on a CPU that the steps run"),
        (
            ("--device", "cpu", "--tiny", "--steps", "magic"),
            "--steps: expected some of kernels, cost, real, vlm, image, got 'magic'",
        ),
        (("--device", "cpu", "--tiny", "--repeats", "0"), "--repeats: expected at least 1, got 0, change it"),
    ],
)
def test_a_wrong_option_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["gpu", *words])
    assert result.exit_code == 2 and result.stderr.startswith(f"Error: {said}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    result = CliRunner().invoke(app, ["gpu"])
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: --device: expected a GPU, got cpu; add --tiny to see on a CPU that the steps run\n",
    )
