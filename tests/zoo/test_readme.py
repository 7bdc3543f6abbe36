"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    render(sample_scene(EVAL_SEEDS[3])).save("scene.png")
    own, picture = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    names: dict = {}
    exec(own, names)
    printed = capsys.readouterr().out
    assert "objects" in printed and "1 calls, 0 refused; exact" in printed
    exec(picture, names)
    assert (tmp_path / "star.png").stat().st_size and names["out"].stats.exact
