"""The rooms of the benches: imports only lead to the rooms before."""

from __future__ import annotations

import re

from tests.house.tree import ROOT

# `pictures` and `gallery` are shared by the two domains of pictures
ROOMS = ("base", "quality", "engine", "report", "gallery", "pictures", "domains", "machine", "exports")
DOMAINS = ("vlm", "image", "continuous", "video", "sizing")
IMPORT = re.compile(r"^\s*(?:from|import) mmspec\.evaluate\.([a-z_]+)", re.M)


def place(name: str) -> int:
    return ROOMS.index("domains" if name in DOMAINS else name)


def test_imports_of_the_benches_lead_to_the_rooms_before() -> None:
    folder, bad = ROOT / "mmspec" / "evaluate", []
    for path in folder.rglob("*.py"):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        if own != "__init__":
            names = IMPORT.findall(path.read_text(encoding="utf-8"))
            bad += [f"{path.name} imports {name}" for name in names if place(name) > place(own)]
    assert not bad, bad
