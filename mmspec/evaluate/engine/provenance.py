"""Where figures come from: the machine, the code and the weights, and digests of outputs and files."""

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
    """The `env` of a bench file: versions, processor, cores, threads, command line and date, and whatever is added."""
    return {**machine(), "command": shlex.join(["mmspec", *sys.argv[1:]]), "date": date.today().isoformat(), **more}


def machine() -> dict:
    """What of the environment stays the same from one command to the next."""
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
    """The processor's marketing name where the system tells it, else its architecture."""
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """torch computes with `count` threads inside the block; None leaves it as the caller has set it."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fingerprint(folders: Iterable[Path] = ()) -> str:
    """mmspec's version and a hash over all files of the package, of `folders`, and of the modules that users imported.

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
    found.update(files_digest(imported_files()).encode())
    return f"{mmspec.__version__}+{found.hexdigest()[:16]}"


def _packages() -> list[Path]:
    """The folder of mmspec, and those of its public packages that lie beside it, as they do in a checkout."""
    specs = [find_spec(name) for name in ("mmspec", *(f"mmspec.{name}" for name in mmspec.__all__))]
    found = [
        Path(spec.submodule_search_locations[0]).resolve() for spec in specs if spec and spec.submodule_search_locations
    ]
    return [found[0], *(folder for folder in found[1:] if not folder.is_relative_to(found[0]))]


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
