"""The rooms of the zoo: arrows only point down, from training over files and architectures to the world."""

from __future__ import annotations

import pytest

from tests.house.test_layers import imported
from tests.house.tree import ROOT, modules

ROOMS = ("world", "architectures", "files", "training")  # each may import itself and those before it


def violations(module: str, source: str) -> list[str]:
    """Imports of `source`, the text of `module`, that lead to a later room or to a file beside the rooms."""
    room = module.split(".")[2]
    allowed = {f"mmspec.zoo.{name}" for name in ROOMS[: ROOMS.index(room) + 1]}
    names = {name for name in imported(module, source, is_package=False) if name.startswith("mmspec.zoo")}
    return [f"{module} imports {name}" for name in sorted(names) if ".".join(name.split(".")[:3]) not in allowed]


def test_every_zoo_file_lies_in_a_room_and_imports_no_later_room() -> None:
    zoo = ROOT / "mmspec" / "zoo"
    assert [path.name for path in zoo.glob("*.py")] == ["__init__.py"]
    bad = [
        line
        for name, path in modules()
        if zoo in path.parents and path.name != "__init__.py"
        for line in violations(name, path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mmspec.zoo.world.scene", "from ..files.registry import load"),
        ("mmspec.zoo.architectures.clip", "def f():\n    from ..training.loop import train"),
        ("mmspec.zoo.files.registry", "from mmspec.zoo.training.vlm import build_vlm"),
        ("mmspec.zoo.training.loop", "from .. import load"),
    ],
)
def test_an_arrow_that_points_up_is_found(module: str, source: str) -> None:
    assert violations(module, source)
