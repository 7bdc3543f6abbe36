"""The Python files that pages include, as modules and as programs."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def imported(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """The example of that name; forgotten after the test."""
    forget(monkeypatch)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module(name)


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, name: str) -> list[str]:
    """What `python docs/examples/NAME.py` prints."""
    forget(monkeypatch)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    return capsys.readouterr().out.splitlines()


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples have plain names, such as `rule`, that mean nothing elsewhere."""
    for path in EXAMPLES.glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, None)
        monkeypatch.delitem(sys.modules, path.stem)
