"""The figures of the pages are drawn from tables. A figure that is older than its table, or changed by hand, is found."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = spec_from_file_location("site_figures", ROOT / "docs" / "_site" / "figures.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("cell", "value", "ends"),
    [
        ("2.06 (2.00-2.12)", 2.06, [2.0, 2.12]),
        ("-0.0005 (-0.0019 to 0.0012)", -0.0005, [-0.0019, 0.0012]),
        ("0.0106 (4.245e-05-0.02224)", 0.0106, [4.245e-05, 0.02224]),
        ("0.0093 (-1.851e-05-0.02117)", 0.0093, [-1.851e-05, 0.02117]),
        ("-", None, None),
        ("48/48", 48, None),
    ],
)
def test_cells_are_numbers_with_intervals(figures: ModuleType, cell: str, value: float, ends: list | None) -> None:
    assert figures.number(cell) == value and figures.interval(cell) == ends


# files of docs/figures that plot no table, and the reason
NOT_PLOTTED = {
    r"acceptance\.csv": "the numbers of sweep_acceptance.png",
    r"smollm2_speed\.svg": "text, whose numbers tests/docs/test_pages.py compares with the table",
    r"(round|exactness)\.svg": "drawings by hand without measured numbers",
    r"strip_\w+\.webp": "samples of the zoo's models, drawn by docs/_site/pictures.py",
    r"(continuous_(ar|head|cspd|stack)\.png|video_(ar|draft|sdvg)\.webp)": "samples that a bench wrote",
    r"web_\w+\.webp": "screenshots",
}


def plotted(figures: ModuleType, names: tuple[str, ...] = ()) -> dict[str, object]:
    """The content of every figure by its name, as it follows from today's tables; nothing is drawn."""
    contents: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "plot", lambda drawing, content, name, *settings: contents.update({name: content}))
        figures.main(names)
    return contents


@pytest.fixture(scope="module")
def contents(figures: ModuleType) -> dict[str, object]:
    return plotted(figures)


def stamps(file: Path) -> dict[str, str]:
    with Image.open(file) as picture:
        return dict(picture.text)


def stale(figures: ModuleType, file: Path, content: object) -> list[str]:
    """The digests of a figure that are not those of its content and of its pixels."""
    now = {"Numbers": figures.digest(content), "Pixels": figures.pixels(file)}
    return [name for name, value in now.items() if stamps(file).get(name) != value]


def test_every_figure_has_its_numbers_from_tables(figures: ModuleType, contents: dict[str, object]) -> None:
    assert all(contents.values()) and len(contents) == 18
    points = {value for panel in contents["estimate"] for _, ys in panel.clouds.values() for value in ys}
    table = next(table for table in figures.tables(ROOT / "docs" / "estimate.md") if "timed passes" in table.rows[0])
    assert points == {float(line["predicted"]) for line in table.rows}
    assert {title.partition(",")[0] for title in contents["time"]} == {"captions"}
    assert all(panel.lines for name in ("lengths", "blocks", "pictures") for panel in contents[name])


def test_every_file_is_plotted_or_listed_with_a_reason(figures: ModuleType, contents: dict[str, object]) -> None:
    files = {file.name for file in figures.FOLDER.iterdir()}
    listed = {name for name in files if any(re.fullmatch(pattern, name) for pattern in NOT_PLOTTED)}
    assert files - listed == {f"{name}.png" for name in contents}
    assert all(any(re.fullmatch(pattern, name) for name in files) for pattern in NOT_PLOTTED)


def test_every_figure_carries_the_digest_of_its_numbers_and_of_its_pixels(
    figures: ModuleType, contents: dict[str, object]
) -> None:
    old = {
        name: wrong for name in contents if (wrong := stale(figures, figures.FOLDER / f"{name}.png", contents[name]))
    }
    assert not old, f"run `make figures`: {old}"


def test_a_figure_that_was_changed_by_hand_is_found(
    figures: ModuleType, contents: dict[str, object], tmp_path: Path
) -> None:
    name, content = "estimate", contents["estimate"]
    with Image.open(figures.FOLDER / f"{name}.png") as picture:
        notes, changed = PngInfo(), picture.copy()
        for key, text in picture.text.items():
            notes.add_text(key, text)
    changed.putpixel((5, 5), (1, 2, 3, 255)[: len(changed.getbands())])
    changed.save(tmp_path / "kept.png", pnginfo=notes)
    changed.save(tmp_path / "lost.png")
    assert stale(figures, tmp_path / "kept.png", content) == ["Pixels"]
    assert stale(figures, tmp_path / "lost.png", content) == ["Numbers", "Pixels"]


@pytest.mark.parametrize(("page", "name"), [("estimate.md", "estimate"), ("sweep.md", "sweep")])
def test_a_table_that_was_changed_without_its_figure_is_found(
    figures: ModuleType, page: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", copied, ignore=shutil.ignore_patterns("*.webp", "notebooks", "examples"))
    monkeypatch.setattr(figures, "DOCS", copied)
    text, changes = (copied / page).read_text(encoding="utf-8"), 0
    for line in text.splitlines():
        # the first figure with an interval, which every table of the two pages plots
        if line.startswith("|") and (changed := re.sub(r"(\| \d+\.\d)\d( \()", r"\g<1>\2", line, count=1)) != line:
            text, changes = text.replace(line, changed), changes + 1
    (copied / page).write_text(text, encoding="utf-8")
    wrong = [
        stale(figures, figures.FOLDER / f"{content_}.png", content)
        for content_, content in plotted(figures, (name,)).items()
    ]
    assert changes and ["Numbers"] in wrong


@pytest.mark.parametrize("name", ["estimate", pytest.param("all", marks=pytest.mark.whole)])
def test_figures_are_drawn_again_byte_for_byte(
    figures: ModuleType, contents: dict[str, object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of matplotlib draws the same numbers with other bytes."""
    here, kept = pytest.importorskip("matplotlib").__version__, figures.FOLDER
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    shutil.copy(kept / "acceptance.csv", tmp_path)
    figures.main(() if name == "all" else (name,))
    drawn = list(tmp_path.glob("*.png"))
    assert len(drawn) == (len(contents) if name == "all" else 1)
    for file in drawn:
        if stamps(kept / file.name)["Software"] == here:
            assert file.read_bytes() == (kept / file.name).read_bytes(), file.name
