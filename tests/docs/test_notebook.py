"""The notebook of the first minute: short cells that run in turn, with small stored outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "docs" / "notebooks" / "first_minute.ipynb"
CELLS, LINES, BYTES = 8, 10, 300_000


def cells(kind: str) -> list[dict]:
    return [cell for cell in json.loads(FILE.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_cells_are_few_and_short() -> None:
    sources = ["".join(cell["source"]) for cell in cells("code")]
    assert len(sources) <= CELLS and all(len(source.splitlines()) <= LINES for source in sources)


def test_outputs_are_stored_and_small() -> None:
    found = [cell["outputs"] for cell in cells("code")]
    assert all(found) and FILE.stat().st_size < BYTES
    assert not any(output["output_type"] == "error" for outputs in found for output in outputs)
    kinds = {kind for outputs in found for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds


@pytest.mark.whole
def test_cells_run_in_turn(capsys: pytest.CaptureFixture) -> None:
    names: dict = {}
    for cell in cells("code"):
        exec(compile("".join(cell["source"]), str(FILE), "exec"), names)
        stored = "".join("".join(output.get("text", ())) for output in cell["outputs"])
        assert capsys.readouterr().out == stored
    assert names["drafted"].sequences.equal(names["plain"].sequences)
    assert names["drafted"].stats.target_passes < names["plain"].stats.target_passes
    assert names["out"].stats.exact and names["filled"][-1] == 256 and not names["found"].exact
