"""Damaged work of a training run: one sentence that names the file, and nothing half restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.training.checkpoint import load_state, save_state
from mmspec.training.run_state import TrainingLog
from mmspec.vlm.training.answers import read_answers
from mmspec.vlm.training.examples import JsonExamples
from mmspec.vlm.training.run_setup import check_same_run
from mmspec.vlm.training.teacher_store import TeacherStore
from tests.evaluate.tiny_zoo import tiny_zoo
from tests.vlm.training.test_teacher_store import teacher_batch


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    return module, optimizer


@pytest.fixture
def state(tmp_path: Path) -> Path:
    save_state(tmp_path / "state.safetensors", *trained(), 7)
    return tmp_path / "state.safetensors"


def rewrite(
    change: Callable[[dict[str, Tensor]], object], told: dict[str, str] | None = None
) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with safe_open(path, "pt") as file:
            known = file.metadata()
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, known if told is None else told)

    return damage


def cut(kept: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)]) and None


DAMAGES = {
    "cut off": cut(0.9),
    "cut in the header": cut(0.05),
    "empty": cut(0),
    "garbage": lambda path: path.write_bytes(b"\xff" * 500),
    "no step": rewrite(lambda tensors: None, {}),
    "a step that is no number": rewrite(lambda tensors: None, {"step": "x"}),
    "a weight is missing": rewrite(lambda tensors: tensors.pop("model.1.weight")),
    "a weight of another shape": rewrite(lambda tensors: tensors.update({"model.1.weight": torch.ones(3, 4)})),
    "moments of another shape": rewrite(lambda tensors: tensors.update({"optim.2.exp_avg": torch.ones(2)})),
    "moments of nothing": rewrite(lambda tensors: tensors.update({"optim.9.exp_avg": torch.ones(3)})),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_refused_and_changes_nothing(damage: str, state: Path) -> None:
    DAMAGES[damage](state)
    module, optimizer = trained()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match="expected") as caught:
        load_state(state, module, optimizer)
    assert str(caught.value).startswith(f"{state}: ") and "\n" not in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_a_teacher_batch_of_another_shape_is_named(tmp_path: Path) -> None:
    stored = TeacherStore(tmp_path)
    for change in (
        lambda found: found.pop("last"),
        lambda found: found.update(ids=found["ids"][:, :3].contiguous()),
        lambda found: found.update(ids=found["ids"][..., None]),
        lambda found: found.update(last=torch.ones(())),
    ):
        stored.write(1, teacher_batch(1))
        rewrite(change, {})(stored.path(1))
        with pytest.raises(ValueError, match="0000001.safetensors: expected a stored teacher batch, got"):
            stored(1)


@pytest.mark.parametrize(
    "line", ["[1]", "{", '{"seconds": 1}', '{"step": "1", "seconds": 2}', '{"step": 1, "seconds": []}']
)
def test_a_log_of_something_else_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(f'{{"step": 1, "seconds": 2}}\n{line}\n')
    with pytest.raises(ValueError, match=r"log.jsonl, line 2: expected"):
        TrainingLog(file).cut(3)


def test_a_line_cut_short_is_dropped_from_a_log(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 1, "seconds": 2}\n{"step": 2, "sec')
    TrainingLog(file).cut(3)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1]


@pytest.mark.parametrize(
    "line", ["[1]", "{", "{}", '{"key": 1, "ids": []}', '{"key": "a", "ids": [1.5]}', '{"key": "a", "ids": 3}']
)
def test_answers_of_something_else_are_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"key": "a", "ids": [1]}}\n{line}\n')
    with pytest.raises(ValueError, match=r"answers.jsonl, line 2: expected"):
        read_answers(file)


def test_an_answer_cut_short_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"key": "ä", "ids": [1]}\n{"key": "b", "i', encoding="utf-8")
    assert read_answers(file) == {"ä": [1]}
    assert file.read_text(encoding="utf-8") == '{"key": "ä", "ids": [1]}\n'


@pytest.mark.parametrize("contents", [b"{", b"[1]", b"\xff"])
def test_the_note_of_a_run_and_examples_are_named(contents: bytes, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_bytes(contents)
    for read in (lambda: check_same_run(file, {"kind": "msd"}), lambda: JsonExamples(file)):
        with pytest.raises(ValueError, match=r"job.json\b.*: expected"):
            read()


def test_a_run_over_damaged_work_reports_one_error(tmp_path: Path) -> None:
    target, data, out = tmp_path / "target", tmp_path / "data.jsonl", tmp_path / "out"
    model, processor = tiny_zoo()["vlm"]
    model.save_pretrained(target)
    processor.save_pretrained(target)
    data.write_text("".join(json.dumps({"text": f"what {n}?", "answer": f"it is {n}"}) + "\n" for n in range(6)))
    command = ["train", "vlm-drafter", "--kind", "eagle2", "--target", str(target), "--data", str(data), "--out", str(out),
               "--steps", "2", "--batch", "2", "--held-out", "1", "--eval-every", "0", "--answers", "given", "--teacher",
               "offline", "--precision", "no", "--device", "cpu"]  # fmt: skip
    assert CliRunner().invoke(app, command).exit_code == 0
    for name in ("state.safetensors", "job.json", "log.jsonl", "states/0000000.safetensors"):
        file = out / "work" / name
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2] if file.suffix != ".jsonl" else b"{\n" + whole)
        if name.startswith("states"):
            (out / "work" / "state.safetensors").unlink()  # so that it learns again
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit), (name, result.exception)
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ") and str(file) in line
        file.write_bytes(whole)
