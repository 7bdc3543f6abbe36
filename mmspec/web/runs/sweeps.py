"""Runs of `mmspec evaluate` in one folder, and the rows of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.web.limits import Limits, Refused

ABSENT = "run: expected one of the runs in the server's folder, got another name, pick one of the list"
LARGEST = 200_000_000  # bytes of all shards


def known_runs(folder: Path) -> list[str]:
    """Names of the runs below a folder, that of the folder itself being "."; none where there is no folder."""
    from mmspec.evaluate.sweep.shards import FOLDER

    if not folder.is_dir():
        return []
    below = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    inside = [path.name for path in below if any((path / FOLDER).glob("*.jsonl"))]
    return [*(["."] if any((folder / FOLDER).glob("*.jsonl")) else []), *inside]


def rows_of_run(folder: Path, name: Any, limits: Limits) -> tuple[list[dict], list[str]]:
    """Rows of a run, and what a reader must know of them.

    Raises Refused for what is no name of `known_runs`, and for runs too large to read here.
    """
    from mmspec.evaluate.report.cautions import cautions, failures
    from mmspec.evaluate.report.rows import rows
    from mmspec.evaluate.sweep.media import inside
    from mmspec.evaluate.sweep.shards import FOLDER, read_run

    if not isinstance(name, str) or name not in known_runs(folder):
        raise Refused(ABSENT)
    try:
        run = inside(folder, name)
    except ValueError:
        raise Refused(ABSENT) from None
    size = sum(file.stat().st_size for file in (run / FOLDER).glob("*.jsonl"))
    if size > LARGEST:
        raise Refused(f"run: expected shards of at most {LARGEST:,} bytes, got {size:,}, use `mmspec report` on it")
    try:
        found = read_run(run)
        made = rows(found) if found.samples else []
        notes = [*cautions(found), *failures(found)] if found.samples else []
    except (ValueError, OSError) as error:
        raise Refused(" ".join(str(error).replace(str(run), name).split())) from None
    if not made:
        raise Refused(f"run: expected samples in {name}, got none yet, let `mmspec evaluate` finish some")
    if len(made) > limits.rows:
        raise Refused(f"run: expected at most {limits.rows:,} rows, got {len(made):,}, use `mmspec report` on it")
    return made, notes
