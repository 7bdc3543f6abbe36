"""Curves: what is read from training logs, and the one sentence where they cannot be drawn."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

from mmspec.evaluate.plots import bench_panels, draw, need_matplotlib, training_curve, training_panels


def log(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_curve_is_the_lines_that_measured_acceptance(tmp_path: Path) -> None:
    online = log(
        tmp_path / "a", {"step": 20, "loss": 3.0}, {"step": 100, "accept_length": 2.5}, {"step": 120, "loss": 2.0}
    )
    offline = log(tmp_path / "b", {"step": 100, "accept_length": 2.0}, {"step": 200, "accept_length": 3.0, "loss": 1.0})
    (panel,) = training_panels({"online": online, "offline": offline})
    assert panel.lines == {"online": ((100,), (2.5,)), "offline": ((100, 200), (2.0, 3.0))}
    draw([panel], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_logs_without_a_curve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected lines with 'accept_length', got none"):
        training_curve(log(tmp_path / "a", {"step": 1, "loss": 2.0}))
    (tmp_path / "b").write_text('{"accept_length": 2.0}\n')
    with pytest.raises(ValueError, match="line 1: expected a JSON object with a step"):
        training_curve(tmp_path / "b")
    (tmp_path / "c").write_text("[1]\nhello\n")
    with pytest.raises(ValueError, match="line 2: expected a JSON object"):
        training_curve(tmp_path / "c")


def test_without_matplotlib_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ValueError, match=r"expected matplotlib, got none, pip install \"mmspec\[eval\]\""):
        need_matplotlib()


def test_what_has_no_curve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a suite with a curve, got 'drafters'"):
        bench_panels({"env": {"suite": "drafters"}, "rows": []})
    with pytest.raises(ValueError, match="expected rows with figures to draw"):
        draw(bench_panels({"env": {"suite": "lengths"}, "rows": []}), tmp_path / "none.png")
