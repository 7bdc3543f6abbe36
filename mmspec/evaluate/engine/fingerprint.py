"""What code and weights figures were made with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import mmspec


def fingerprint(folders: Iterable[Path] = ()) -> str:
    """mmspec's version and a hash over all files of the package, code and weights, and over those of `folders`.

    It changes with every change that could change a figure, and with some that could not.
    """
    found = hashlib.sha256()
    for folder in (*_packages(), *folders):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                with path.open("rb") as handle:
                    found.update(
                        f"{path.relative_to(folder)}:{hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode()
                    )
    return f"{mmspec.__version__}+{found.hexdigest()[:16]}"


def _packages() -> list[Path]:
    """The folder of mmspec, and those of its public packages that lie beside it, as they do in a checkout."""
    specs = [find_spec(name) for name in ("mmspec", *(f"mmspec.{name}" for name in mmspec.__all__))]
    found = [
        Path(spec.submodule_search_locations[0]).resolve() for spec in specs if spec and spec.submodule_search_locations
    ]
    return [found[0], *(folder for folder in found[1:] if not folder.is_relative_to(found[0]))]
