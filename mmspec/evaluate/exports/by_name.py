"""What a run has made, written out for a public judge, by the judge's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmspec.evaluate.exports.layouts import dpg, geneval, vbench
from mmspec.evaluate.sweep.shards import Records

# name -> (what it is of, how one cell is written)
KINDS: dict[str, tuple[str, Callable]] = {
    "geneval": ("picture", geneval),
    "dpg": ("picture", dpg),
    "vbench": ("film", vbench),
}


def export_run(kind: str, found: Records, folder: Path) -> str:
    """Writes a folder per cell; a sentence on what was written.

    kind: "geneval", "dpg" or "vbench"; the judges themselves are other people's and are run by the user.
    Raises ValueError for another kind, and for a run that has made nothing of what it reads.
    """
    if kind not in KINDS:
        raise ValueError(f"--export: expected one of {', '.join(KINDS)}, got {kind!r}, pick one of these")
    shows, write = KINDS[kind]
    cells: dict[str, list[dict]] = {}
    for one in found.samples.values():
        if one["failed"] is None and one["shown"] is not None and one["shows"] == shows:
            cells.setdefault(one["cell"], []).append(one)
    if not cells:
        raise ValueError(
            f"--export: expected a run that has made a {shows}, got none in {str(found.folder)!r}, run a model of them"
        )
    for cell, samples in cells.items():
        ordered = sorted(samples, key=lambda one: (one["order"], one["sample"]))
        write(found.folder, ordered, folder / f"{ordered[0]['of']['model'].replace('/', '-')}-{cell}")
    count = sum(map(len, cells.values()))
    return f"{folder}: {count} samples of {len(cells)} cells as {kind} reads them"
