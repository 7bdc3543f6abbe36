"""The Python files that pages include, as modules and as programs."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from mmspec.methods import registry

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def imported(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """The example of that name; forgotten after the test."""
    with prepared(monkeypatch):
        return import_module(name)


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, name: str) -> list[str]:
    """What `python docs/examples/NAME.py` prints."""
    with prepared(monkeypatch):
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return capsys.readouterr().out.splitlines()


@contextmanager
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples can be imported by name; after the test neither their modules nor their methods are known."""
    # their plain names, such as `rule`, mean nothing elsewhere
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, None)
        monkeypatch.delitem(sys.modules, path.stem)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        yield
    finally:
        for key, described in list(registry._registered.items()):
            if not described.home.startswith("mmspec."):
                del registry._registered[key]
                monkeypatch.setitem(registry._registered, key, described)
