"""Where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

import mmspec


def environment(**more: object) -> dict:
    """The `env` of a bench file: versions, processor, cores, threads, command line and date, and whatever is added."""
    return {
        **machine(),
        "command": shlex.join(["mmspec", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        **more,
    }


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
