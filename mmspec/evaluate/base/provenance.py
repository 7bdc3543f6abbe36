"""The origin of figures: the machine, the code and the weights, and digests of outputs and files."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

import mmspec
from mmspec.methods.modules import imported_files


def environment(**more: object) -> dict:
    """Return the `env` of a bench file: versions, processor, cores, threads, command line, date and further entries."""
    return {**machine(), "command": shlex.join(["mmspec", *sys.argv[1:]]), "date": date.today().isoformat(), **more}


def machine() -> dict:
    """Return the entries of the environment that do not change from one command to the next."""
    return {
        "versions": {
            "mmspec": mmspec.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
        },
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }


def processor_name() -> str:
    """Return the processor's marketing name where the system has it, else its architecture."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Make torch compute with `count` threads inside the block; None keeps the caller's setting."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fingerprint(folders: Iterable[Path] = ()) -> str:
    """Return mmspec's version and a hash over the package, `folders`, and the modules that users imported. It changes
    with every change that could affect a figure, and with some that could not."""
    digest = hashlib.sha256()
    for folder in (*_packages(), *folders):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                with path.open("rb") as handle:
                    digest.update(
                        f"{path.relative_to(folder)}:{hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode()
                    )
    digest.update(files_digest(imported_files()).encode())
    return f"{mmspec.__version__}+{digest.hexdigest()[:16]}"


def _packages() -> list[Path]:
    """Return the folder of mmspec, and its public packages that lie beside it in a checkout."""
    specs = [find_spec(name) for name in ("mmspec", *(f"mmspec.{name}" for name in mmspec.__all__))]
    folders = [
        Path(spec.submodule_search_locations[0]).resolve() for spec in specs if spec and spec.submodule_search_locations
    ]
    return [folders[0], *(folder for folder in folders[1:] if not folder.is_relative_to(folders[0]))]


def output_digest(output: Sequence[Sequence[Hashable]]) -> str:
    """Return a hash of the generated values, row by row; vectors are hashed bit for bit."""
    digest = hashlib.sha256()
    for row in output:
        for value in row:
            digest.update(value if isinstance(value, bytes) else f"{value},".encode())
        digest.update(b";")
    return digest.hexdigest()[:32]


def files_digest(paths: Iterable[Path]) -> str:
    """Return a hash over files, and over all files in folders by their names inside."""
    total = hashlib.sha256()
    for path in paths:
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in inside:
            with file.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256").hexdigest()
            total.update(f"{file.relative_to(path) if path.is_dir() else file.name}:{digest}\n".encode())
    return total.hexdigest()[:16]
