"""The examples of the first pages run as shown, on a tiny stand-in for the zoo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.examples import said
from tests.evaluate.tiny_images import use_tiny_images
from tests.evaluate.tiny_zoo import use_tiny_zoo


def test_the_caption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    assert said(monkeypatch, capsys, "caption")[-1].startswith("identical: True in ")


def test_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_images(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (line,) = said(monkeypatch, capsys, "picture")
    assert line.endswith("exact: True") and (tmp_path / "star.png").is_file()


def test_a_model_that_is_there_already(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    assert "1 calls, 0 refused; exact" in "\n".join(said(monkeypatch, capsys, "own_model"))


def test_requests_in_turn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    assert "[[0]" in "\n".join(said(monkeypatch, capsys, "rounds"))


def test_the_enumeration(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    *exact, relaxed = said(monkeypatch, capsys, "enumeration")
    assert [line.partition(":")[0] for line in exact] == ["token", "block", "match"]
    assert all(float(line.split()[1]) < 1e-12 for line in exact)
    token, block, match = (float(line.split()[6]) for line in exact)
    assert block > token and block > match and relaxed.startswith("coolsd (relaxed): 0.") and " 0.00 " not in relaxed
