"""What tests of commands may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluate.tiny_video import use_tiny_video


@pytest.fixture
def tiny_video(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The zoo's video models are tiny ones, and files go to a folder of the test's own."""
    use_tiny_video(monkeypatch)
    monkeypatch.chdir(tmp_path)
