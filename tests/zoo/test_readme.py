"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.evaluate.vlm.requests import demo_scenes
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.render import render

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    render(demo_scenes(1)[0]).save(tmp_path / "scene.png")
    monkeypatch.chdir(tmp_path)
    first, second, third, fourth = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    names: dict = {}
    exec(first, names)
    printed = capsys.readouterr().out
    assert "objects" in printed and names["out"].stats.accept_length > 2
    exec(second.replace("path/to/drafter", str(folder_of("vlm/eagle"))), names)
    assert names["ids"].shape[0] == 1
    exec(third, names)
    last = names["session"].last
    assert last.read < 0.1 * last.sequences.shape[1]
    exec(fourth, names)
    assert (tmp_path / "star.png").stat().st_size and names["out"].stats.exact
