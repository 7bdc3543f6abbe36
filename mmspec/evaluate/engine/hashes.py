"""Hashes of outputs and of files."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path


def output_digest(output: Sequence[Sequence[Hashable]]) -> str:
    """Of what requests generated, row by row: equal where every token, and of vectors every bit, is."""
    found = hashlib.sha256()
    for row in output:
        for value in row:
            found.update(value if isinstance(value, bytes) else f"{value},".encode())
        found.update(b";")
    return found.hexdigest()[:32]


def files_digest(paths: Iterable[Path]) -> str:
    """Of files, and of all files in folders by their names inside."""
    found = hashlib.sha256()
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for file in inside:
            with file.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            found.update(f"{file.relative_to(path) if path.is_dir() else file.name}:{digest}\n".encode())
    return found.hexdigest()[:16]
