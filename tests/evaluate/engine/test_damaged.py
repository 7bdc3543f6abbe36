"""Damaged runs of `mmspec evaluate`: one sentence with the file and the line, whatever a record lacks or holds."""

from __future__ import annotations

import copy
import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmspec.evaluate.base.media import load_output
from mmspec.evaluate.engine.schema import RECORDS, check_record
from mmspec.evaluate.engine.shards import Records, Shard, read_run
from mmspec.evaluate.report import profiles
from mmspec.evaluate.report.cautions import cautions, failures
from mmspec.evaluate.report.rows import category_rows, rows, tables
from mmspec.evaluate.report.tables import as_csv, page
from mmspec.io.files import WriteError
from tests.damaged import WRONG
from tests.evaluate.report.kept import ABOUT, grid, header, picture, sample, with_media, written

ROOM = 700  # bytes that a full disk still takes
VALUES = (*WRONG, None, -1, 10**40, True, float("nan"))
MODEL = {"kind": "model", "model": "t2i", "name": "a tiny model", "dtype": "float32", "device": "cpu"}
LEFT_OUT = ("features", "probabilities")  # texts have none


def whole_run(folder: Path, *, judged: bool = True) -> Path:
    """The shard of a run with a record of every kind, whose samples have pictures."""
    records = [with_media(folder, record, picture(7)) if record["kind"] == "sample" else record for record in grid(2)]
    written(folder, [MODEL, *(record for record in records if judged or record["kind"] == "sample")])
    (shard,) = (folder / "shards").iterdir()
    return shard


def used(folder: Path) -> None:
    """Read a run and make all tables of a report."""
    run = read_run(folder)
    made, grouped = rows(run), tables(run)
    json.dumps([made, profiles.position_rows(grouped), profiles.time_rows(grouped)], allow_nan=False)
    as_csv(made)
    page(run, made, category_rows(run), [*cautions(run), *failures(run)], {})


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The place of every field and item below a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in parts:
        yield (*path, name)
        yield from places(inner, (*path, name))


def changed(record: dict, path: tuple, change: Callable[[Any, Any], object]) -> dict:
    """A copy of a record in which `change(container, name)` has changed one place."""
    made = copy.deepcopy(record)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    change(inner, path[-1])
    return made


def changes(record: dict) -> Iterator[tuple[str, tuple, dict]]:
    for path in places(record):
        for value in VALUES:
            yield (
                f"{value!r:.20}",
                path,
                changed(
                    record,
                    path,
                    lambda inner, name, value=value: (
                        inner.update({name: value}) if isinstance(inner, dict) else inner.__setitem__(name, value)
                    ),
                ),
            )
        if isinstance(path[-1], str):
            yield "missing", path, changed(record, path, lambda inner, name: inner.pop(name))


@pytest.mark.whole
@pytest.mark.parametrize("kind", [kind for kind in RECORDS if kind != "part"])  # those of a sweep
def test_a_changed_field_is_refused_by_file_and_line_or_harmless(kind: str, tmp_path: Path) -> None:
    shard = whole_run(tmp_path, judged=kind in ("header", "score", "real"))  # distances take most of the time
    lines = shard.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    refused = 0
    for what, path, record in changes(json.loads(lines[number])):
        shard.write_text("\n".join([*lines[:number], json.dumps(record), *lines[number + 1 :]]) + "\n")
        try:
            used(tmp_path)
        except ValueError as error:
            refused += 1
            said = str(error)
            assert f"{shard}, line " in said and "expected" in said and "got" in said and "\n" not in said, (
                what,
                path,
                said,
            )
        else:
            open_object = path[:1] in (("versions",), ("prompts",), ("judges",), ("figures",)) and len(path) == 2
            assert what != "missing" or path[-1] in LEFT_OUT or open_object, path
    assert refused > 20


def test_a_changed_part_of_a_bench_is_refused(tmp_path: Path) -> None:
    whole = {"kind": "part", "run": "a", "part": {"suite": "speed"}, "value": [{"method": "plain"}]}
    check_record(whole, tmp_path, "log, line 2")
    for wrong in ({"part": "speed"}, {"part": None}, {"run": 3}, {"kind": "parts"}):
        with pytest.raises(ValueError, match="log, line 2: expected .* got"):
            check_record({**whole, **wrong}, tmp_path, "log, line 2")
    for name in ("part", "value", "run"):
        with pytest.raises(ValueError, match="log, line 2: expected"):
            check_record({key: value for key, value in whole.items() if key != name}, tmp_path, "log, line 2")


def test_the_sentence_names_the_line_and_the_field(tmp_path: Path) -> None:
    shard = whole_run(tmp_path)
    lines = shard.read_text().splitlines()
    record = json.loads(lines[2])
    record["time"]["parts"]["prefill"] = "long"
    shard.write_text("\n".join([*lines[:2], json.dumps(record)]) + "\n")
    with pytest.raises(ValueError, match=r"\.jsonl, line 3: expected .* as time\.parts\.prefill, got \"long\"; "):
        read_run(tmp_path)


@pytest.mark.parametrize("change", ["no header", "a line of another run", "a second header", "a header of another run"])
def test_a_record_of_another_run_is_refused(change: str, tmp_path: Path) -> None:
    whole_run(tmp_path)
    other = written(tmp_path / "other", grid(2), about={**ABOUT, "seed": 1})
    head, *rest = next((other.folder / "shards").iterdir()).read_text().splitlines(keepends=True)
    own = next((tmp_path / "shards").iterdir()).read_text().splitlines(keepends=True)
    stranger = {
        "no header": rest,
        "a line of another run": [own[0], rest[0]],
        "a second header": [*own, own[0]],
        "a header of another run": [json.dumps({**json.loads(head), "run": json.loads(own[0])["run"]}) + "\n"],
    }
    (tmp_path / "shards" / "z.jsonl").write_text("".join(stranger[change]))
    with pytest.raises(
        ValueError, match=r"z\.jsonl, line \d+: expected (shards of one run|a header as the first line)"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.png", "/etc/passwd", "media/../../outside.png", "media/link.png", "linked/x.png"]
)
def test_a_path_that_leads_out_of_the_run_is_refused_where_the_record_is_read(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "media").mkdir(parents=True)
    picture(1).save(tmp_path / "outside.png")
    (run / "media" / "link.png").symlink_to(tmp_path / "outside.png")
    (run / "linked").symlink_to(tmp_path)
    Shard(run, ABOUT, header()).add([sample("ar", 0, shown={"file": name, "frames": 1, "pixels": ""})])
    with pytest.raises(ValueError, match="line 2: .*inside the run's folder"):
        read_run(run)


@pytest.mark.parametrize("cell", ["../../x", "/etc", "a/b", "..", "a\0b"])
def test_a_cell_that_is_no_name_of_a_folder_is_refused(cell: str, tmp_path: Path) -> None:
    """An export makes a folder of this name."""
    Shard(tmp_path, ABOUT, header()).add([sample("ar", 0, cell=cell, key=f"{cell}/p0@d/0")])
    with pytest.raises(ValueError, match="line 2: expected a name without separators of paths as cell"):
        read_run(tmp_path)


def test_a_picture_that_differs_from_its_record_is_refused(tmp_path: Path) -> None:
    one = with_media(tmp_path, sample("ar", 0), picture(3))
    file = tmp_path / one["shown"]["file"]
    assert load_output(tmp_path, one["shown"], "picture").size == (8, 8)
    for damage in (lambda: picture(4).save(file), lambda: file.write_bytes(file.read_bytes()[:50]), file.unlink):
        damage()
        with pytest.raises(ValueError, match=f"{file.name}.*expected .*got"):
            load_output(tmp_path, one["shown"], "picture")
    film = {**one["shown"], "frames": 3}
    picture(3).save(file)
    with pytest.raises(ValueError, match=f"{file.name}.*expected .*got"):
        load_output(tmp_path, film, "film")


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """Limit the size of any file, so that a write takes a part of its bytes and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_whole_lines_and_a_writer_that_goes_on(
    full_disk: Callable[[int], None], tmp_path: Path
) -> None:
    shard, records = Shard(tmp_path, ABOUT, header()), grid(2)
    shard.add(records[:2])
    size = os.path.getsize(shard.file)
    full_disk(size + ROOM)
    with pytest.raises(WriteError, match="make room"):
        shard.add(records[2:])
    assert os.path.getsize(shard.file) == size
    full_disk(1 << 40)
    shard.add(records[2:])
    assert len(read_run(tmp_path).samples) == 6


def test_a_disk_that_is_full_from_the_start_leaves_a_header_to_be_written(
    full_disk: Callable[[int], None], tmp_path: Path
) -> None:
    shard = Shard(tmp_path, ABOUT, header())
    full_disk(100)
    with pytest.raises(WriteError, match="make room"):
        shard.add(grid(2))
    full_disk(1 << 40)
    shard.add(grid(2))
    run: Records = read_run(tmp_path)
    assert len(run.headers) == 1 and len(run.samples) == 6
