"""Every example script runs on the zoo's models, and without weights ends with one sentence that says what it needs."""

from __future__ import annotations

import runpy
import socket
import sys
from pathlib import Path

import pytest

import mmspec
from tests.evaluate.tiny_continuous import captioned
from tests.evaluate.tiny_images import tiny_image_zoo
from tests.evaluate.tiny_video import tiny_video_zoo
from tests.evaluate.tiny_zoo import tiny_zoo
from tests.house.tree import ROOT

DEMOS = ROOT / "demos"
PAGE = (ROOT / "docs" / "demos.md").read_text(encoding="utf-8")
# what a script prints at its end on the stand-ins for the zoo's models
LAST = {
    "caption_llava": "identical: True",
    "caption_qwen": "identical: True",
    "draw_llamagen": "written: llamagen.png",
    "draw_janus": "exact: True written: janus.png",
    "draw_mar": "written: mar-1.png",
    "film_wan": "written: wan.gif",
}
SCRIPTS = sorted(LAST)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """`python demos/NAME.py ARGUMENTS`, in this process."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    monkeypatch.syspath_prepend(str(DEMOS))
    monkeypatch.delitem(sys.modules, "weights", raising=False)
    runpy.run_path(str(DEMOS / f"{name}.py"), run_name="__main__")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, tiny models in the place of the zoo's, and no network."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments}")

    vectors = {"mar": captioned(0, "50"), "mar/draft": captioned(1, "50")}
    models = {**tiny_zoo(), **tiny_image_zoo(), **vectors, **tiny_video_zoo()}
    monkeypatch.setattr(mmspec.zoo, "load", models.__getitem__)
    monkeypatch.setattr(mmspec.zoo, "names", lambda: list(models))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_runs_on_the_zoo(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run(monkeypatch, name, "--zoo")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(LAST[name])
    written = last.partition("written: ")[2]
    assert not written or (place / written).stat().st_size > 0


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("arguments", ((), ("--model", "weights/none")), ids=("nothing", "no folder"))
def test_a_demo_without_weights_names_the_options_it_needs(
    name: str, arguments: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, name, *arguments)
    said = str(ended.value.code)
    assert said.startswith("expected ") and "--model FOLDER" in said and "--zoo" in said and "\n" not in said
    assert ("got no folder weights/none" if arguments else "got no model") in said and not any(place.iterdir())


def test_two_sources_of_weights_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "caption_llava", "--zoo", "--hub", "owner/name")
    assert "not allowed with" in capsys.readouterr().err


def test_the_tour_shows_all_of_it(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    run(monkeypatch, "tour")
    said = capsys.readouterr().out
    assert "identical to transformers: True" in said and "gsd:group=14" in said and "exact: False" in said
    assert [line[0] for line in said.splitlines() if line[:1].isdigit()] == list("12345")


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_reads_like_a_page(name: str) -> None:
    lines = (DEMOS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 75 and f"python demos/{name}.py --zoo" in PAGE


def test_no_script_is_left_out() -> None:
    named = {
        line.split("demos/")[1].split(".py")[0] for line in PAGE.splitlines() if line.startswith("| `python demos/")
    }
    assert named == {*SCRIPTS, "tour"}
    examples = {path.stem for path in DEMOS.glob("*.py") if "from weights import" in path.read_text(encoding="utf-8")}
    assert examples == set(SCRIPTS)
