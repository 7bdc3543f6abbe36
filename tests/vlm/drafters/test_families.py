"""Families of drafters are folders of one shape, and every registry knows them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import mmspec.vlm.drafters as drafters
from mmspec.vlm.drafters import checkpoints  # noqa: F401
from mmspec.vlm.drafters.base.trained_drafter import PretrainedDrafter

FOLDER = Path(drafters.__file__).parent
FAMILIES = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_what_it_is_in_drafter_py(family: str) -> None:
    found = import_module(f"mmspec.vlm.drafters.{family}")
    home = import_module(f"mmspec.vlm.drafters.{family}.drafter")
    classes = [name for name in found.__all__ if isinstance(getattr(home, name, None), type)]
    assert any(getattr(home, name).__module__ == home.__name__ for name in classes)
    assert all(hasattr(found, name) for name in found.__all__)


def test_trained_kinds_are_classes_of_drafter_py() -> None:
    homes = {kind: drafter.__module__ for kind, drafter in PretrainedDrafter.kinds.items()}
    ours = {kind: home for kind, home in homes.items() if home.startswith("mmspec.")}
    assert len(ours) >= 9 and all(home.endswith(".drafter") for home in ours.values()), ours


def test_every_published_reader_is_registered() -> None:
    there = {path.parent.name for path in FOLDER.glob("*/published.py")}
    assert there == set(checkpoints._FAMILIES.values())
    for family in there:
        assert callable(import_module(f"mmspec.vlm.drafters.{family}.published").load)


def test_every_public_drafter_is_one_of_a_family_or_of_the_core() -> None:
    for name, module in drafters._PUBLIC.items():
        family = module.removeprefix("mmspec.vlm.drafters.")
        assert family in FAMILIES or module.startswith("mmspec.core."), name
