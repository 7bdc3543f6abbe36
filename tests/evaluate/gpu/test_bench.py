"""The bench of a GPU: its steps run on a CPU when they are small, and a cost is labelled as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli.bench import app
from mmspec.evaluate.gpu.bench import COST, STEPS, run, shown
from mmspec.evaluate.gpu.shapes import NAMES, decoder


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_over_a_chain_is_what_passes_of_one_value_are(name: str) -> None:
    model = decoder(name, torch.device("cpu"), torch.float32, 12, True)
    alone, several = model.score(1), model.score(4)
    assert several.shape[1] == 4 and model.parameters > 1000
    torch.testing.assert_close(several[:, :1], alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.score(1), alone)  # no pass is committed


def test_the_curve_of_every_shape_starts_at_one() -> None:
    rows = run("cpu", tiny=True, repeats=1, steps=("cost",))["rows"]
    assert [row["model"] for row in rows] == list(NAMES)
    for row in rows:
        assert row["cost"].keys() == {"1", "2", "4"} and row["cost"]["1"] == 1 and row["label"] == COST
        assert row["milliseconds"] is None and "cost only" in shown(row)["what"]


def test_all_steps_go_into_one_file(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    result = CliRunner().invoke(app, ["gpu", "--device", "cpu", "--tiny", "--repeats", "1", "--json", str(file)])
    assert result.exit_code == 0, result.output
    kept = json.loads(file.read_text())
    assert list(dict.fromkeys(row["step"] for row in kept["rows"])) == list(STEPS)
    assert "not yet measured" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cpu"), "--device: expected a GPU, got cpu; add --tiny to see on a CPU that the steps run"),
        (("--device", "cpu", "--tiny", "--steps", "magic"), "--steps: expected some of kernels, cost, got 'magic'"),
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
        2, "Error: --device: expected a GPU for cuda, got none on this machine, take cpu\n",
    )  # fmt: skip
