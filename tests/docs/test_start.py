"""The examples of the first pages run as shown, on a tiny stand-in for the zoo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import mmspec
from tests.docs.examples import ROOT, said
from tests.evaluate.tiny_images import use_tiny_images
from tests.evaluate.tiny_zoo import tiny_zoo, use_tiny_zoo


def test_the_caption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    monkeypatch.setitem(tiny_zoo(), "vlm/dspark", tiny_zoo()["vlm/eagle"])
    assert said(monkeypatch, capsys, "caption")[-1].startswith("identical: True in ")


def first_python(page: Path) -> str:
    """The first block of Python of a page; an included file in the place of its name."""
    block = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)[1]
    included = re.fullmatch(r"# (\S+\.py)\n", block)
    return (ROOT / included[1]).read_text(encoding="utf-8") if included else block


def test_the_first_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    use_tiny_zoo(monkeypatch)
    monkeypatch.setitem(tiny_zoo(), "vlm/dspark", tiny_zoo()["vlm/eagle"])
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((24, 24), 60).convert("RGB").save("scene.png")
    names: dict = {}
    try:
        exec(first_python(ROOT / "README.md"), names)
    finally:
        mmspec.disable(tiny_zoo()["vlm"][0])
    assert "1 calls, 0 refused; exact" in capsys.readouterr().out
    assert names["drafter"] is tiny_zoo()["vlm/eagle"]


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "cookbook").glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_the_first_python_names_a_drafter(page: Path) -> None:
    """`auto` measures first, so a reader's first run would show the state of the machine."""
    if "```python" in page.read_text(encoding="utf-8"):
        assert 'drafter="auto"' not in first_python(page)


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
