"""Rooms keep their size: lines of Python, everything counted. A number rises only with a feature, or by 100 for a fix."""

from __future__ import annotations

import pytest

from tests.house.tree import ROOT

# room -> the most lines, its size of the day rounded up to the next hundred
BUDGETS = {
    "demos": 500,
    "docs": 1_500,
    "imagegen": 11_000,
    "kernels": 4_500,
    "mmspec": 200,
    "mmspec/attach": 600,
    "mmspec/certify": 2_800,
    "mmspec/check": 1_300,
    "mmspec/cli": 4_600,
    "mmspec/core": 9_800,
    "mmspec/estimate": 2_100,
    "mmspec/evaluate": 12_500,
    "mmspec/io": 2_400,
    "mmspec/methods": 700,
    "mmspec/training": 400,
    "mmspec/run": 2_000,
    "mmspec/web": 3_000,
    "mmspec/zoo": 9_700,
    "tests": 85_900,
    "video": 5_500,
    "vlm": 22_900,
}
LONGEST_FILE = 600
MOST_UNFORMATTED = {"product": 100, "tests": 50}  # statements with "# fmt: skip"


def lines_of_rooms() -> dict[str, dict[str, int]]:
    """Return room -> file -> number of lines."""
    rooms: dict[str, dict[str, int]] = {}
    for top in sorted({room.split("/")[0] for room in BUDGETS}):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            room = "/".join(parts[:2]) if parts[0] == "mmspec" and len(parts) > 2 else parts[0]
            rooms.setdefault(room, {})[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8").count("\n")
    return rooms


ROOMS = lines_of_rooms()


def test_every_room_has_a_budget() -> None:
    assert ROOMS.keys() == BUDGETS.keys()


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room: str) -> None:
    lines = sum(ROOMS[room].values())
    assert lines <= BUDGETS[room], f"{room}: {lines:,} lines; shrink the room, or raise its number and say why"
    assert lines > BUDGETS[room] - 500, f"{room}: {lines:,} lines; lower its number"


def test_no_file_is_too_long() -> None:
    long = {file: count for files in ROOMS.values() for file, count in files.items() if count > LONGEST_FILE}
    assert not long


def test_the_formatter_is_off_at_few_tables_alone() -> None:
    skipped = {"product": 0, "tests": 0}
    for room, files in ROOMS.items():
        for file in files:
            text = (ROOT / file).read_text(encoding="utf-8")
            skipped["tests" if room == "tests" else "product"] += text.count("# fmt: " + "skip\n")
    assert all(count <= MOST_UNFORMATTED[part] for part, count in skipped.items()), skipped
