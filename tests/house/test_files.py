"""Output files are complete or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mmspec.cli.console import BadOption, check_writable
from mmspec.io.files import replacing, write_json_atomic, write_text_atomic


def test_text_round_trips_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_text_atomic(path, "old\n")
    write_text_atomic(str(path), "né\n")
    assert path.read_bytes() == "né\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    write_text_atomic(tmp_path / "atomic", "x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_json_round_trips(tmp_path: Path) -> None:
    value = {"env": {"torch": "2"}, "rows": [{"method": "eagle", "speedup": 2.5, "exact": True}]}
    write_json_atomic(tmp_path / "bench.json", value)
    assert json.loads((tmp_path / "bench.json").read_text()) == value


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}, object()], ids=["nan", "inf", "object"])
def test_values_that_json_cannot_hold_leave_the_old_file(tmp_path: Path, value: object) -> None:
    path = tmp_path / "bench.json"
    path.write_text("{}")
    with pytest.raises((ValueError, TypeError)):
        write_json_atomic(path, value)
    assert path.read_text() == "{}" and list(tmp_path.iterdir()) == [path]


def test_an_interrupted_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        assert temporary.suffix == ".safetensors" and temporary.parent == tmp_path
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_at_the_written_file(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text_atomic(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="expected a file to write to, got the device"):
        write_json_atomic(pipe, {})
    with pytest.raises(BadOption, match="expected a file to write to, got the device"):
        check_writable(pipe)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_missing_folder_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected an existing folder"):
        write_text_atomic(tmp_path / "none" / "out.txt", "x")
    with pytest.raises(ValueError, match="expected a file name"):
        write_text_atomic(tmp_path, "x")
