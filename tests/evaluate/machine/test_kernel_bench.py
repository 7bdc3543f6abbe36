"""The bench of ops: every case runs on a CPU, and what only a GPU can say is not said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli.bench import app
from mmspec.evaluate.engine.registry import MACHINE, machine_bench
from mmspec.evaluate.machine.kernel_bench import COLUMNS, UNMEASURED, run, shown
from mmspec.evaluate.machine.kernel_cases import cases

OF_A_GPU = (
    "graph_microseconds",
    "microseconds",
    "floor_microseconds",
    "bandwidth_share",
    "launches",
    "torch_launches",
)


def test_a_cpu_gives_ratios_and_sizes_and_nothing_else() -> None:
    seen: list[dict] = []
    result = run("cpu", tiny=True, repeats=1, on_row=seen.append)
    assert result["rows"] == seen and len(seen) == 7 and result["env"]["side"] == "reference"
    for row in seen:
        assert row.keys() == COLUMNS.keys() and row["ratio"] > 0
        assert 0 < row["bytes_floor"] <= row["bytes_moved"]
        assert all(row[name] is None for name in OF_A_GPU)
        assert list(shown(row).values()).count(UNMEASURED) == len(OF_A_GPU)


def test_the_floor_is_every_logit_once() -> None:
    chain = cases(torch.device("cpu"), tiny=False)[0]()
    assert chain.floor == (32 + 31) * 128_256 * 4 and chain.moved > chain.floor


def test_both_sides_of_copying_cases_do_the_same() -> None:
    for make in cases(torch.device("cpu"), tiny=True):
        case = make()
        if case.name in ("exact top-p 0.9", "tree attention"):
            torch.testing.assert_close(case.ours(), case.plain())
        if case.name.endswith("greedy"):
            assert int(case.ours()) in range(127) and case.plain().shape == (1, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "tpu"), "--device: expected one of auto, cpu, cuda or cuda:N, got 'tpu', choose one"),
        (("--repeats", "0"), "--repeats: expected at least 1, got 0, change it"),
    ],
)
def test_a_wrong_option_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["kernels", *words])
    assert (result.exit_code, result.stderr) == (2, f"Error: {said}\n")


def test_the_command_prints_and_writes_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file = tmp_path / "kernels.json"
    result = CliRunner().invoke(app, ["kernels", "--device", "cpu", "--tiny", "--repeats", "1", "--json", str(file)])
    assert result.exit_code == 0, result.output
    kept = json.loads(file.read_text())
    assert kept["env"]["bench"] == "kernels" and [row["case"] for row in kept["rows"]]
    assert all(row["case"] in result.stdout for row in kept["rows"]) and UNMEASURED in result.stdout


def test_benches_of_the_machine_have_one_shape() -> None:
    for name in MACHINE:
        assert {"ABOUT", "run", "shown"} <= set(vars(machine_bench(name)))
