"""Whatever stands in a file: its contents, or one sentence that begins with its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mmspec.io.readers import naming, open_tensors, read_json, read_json_lines, read_shapes, read_tensors, read_text

NO_OBJECTS = [b"", b"{", b"[1]", b"3", b"null", b"\xff", b"[" * 200_000, b'{"a": 1}}', b"\0" * 50]


def refused(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 600
    return message


@pytest.mark.parametrize("read", [read_text, read_json, read_json_lines, read_tensors, read_shapes])
def test_a_missing_file_and_a_folder_are_named(read, tmp_path: Path) -> None:
    refused(read, tmp_path / "none")
    refused(read, tmp_path)


@pytest.mark.parametrize("contents", NO_OBJECTS)
def test_invalid_json_objects_are_named(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(contents)
    assert "expected JSON" in (line := refused(read_json, path)) or "expected a JSON object" in line


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\xff")
    assert "expected UTF-8 text, got invalid start byte at byte 1" in refused(read_text, path)


@pytest.mark.parametrize("contents", NO_OBJECTS[1:])
def test_a_line_that_is_no_object_is_named_with_its_number(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n' + contents + b"\n")
    line = refused(read_json_lines, path)
    assert ", line 2: " in line or "UTF-8" in line


@pytest.mark.parametrize("end", ["", '{"a"', '{"a": 3}'])
def test_only_a_last_line_without_its_end_may_be_left_out(end: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n' + end)
    assert read_json_lines(path, torn=True) == [{"a": 1}, {"a": 2}]
    if end == '{"a"':
        assert ", line 3: " in refused(read_json_lines, path)
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    assert ", line 2: " in refused(lambda file: read_json_lines(file, torn=True), path)


TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.tensor([1, 2]),
    "c": torch.tensor(True),
    "d": torch.ones(0, 4).half(),
}


def test_tensors_and_their_shapes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    read, shapes = read_tensors(path), read_shapes(path)
    assert list(read) == list(shapes) == sorted(TENSORS)
    for name, value in TENSORS.items():
        assert torch.equal(read[name], value) and read[name].dtype == shapes[name].dtype == value.dtype
        assert shapes[name].shape == value.shape and shapes[name].is_meta


@pytest.mark.parametrize("kept", [0, 4, 20, 200, -1])
def test_a_truncated_file_is_named(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:kept])
    for read in (read_tensors, read_shapes):
        assert "cut off or a pickle" in refused(read, path)


def header(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "contents",
    [
        b"\xff" * 64,
        (1 << 60).to_bytes(8, "little") + b"{}",
        header(a={"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}),
        header(a={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}) + bytes(4),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(4),
        header(a={"dtype": "Q7", "shape": [1], "data_offsets": [0, 4]}) + bytes(4),
        header(a=3),
    ],
    ids=[
        "garbage",
        "a header beyond all bounds",
        "more than the file",
        "negative",
        "two numbers in four bytes",
        "no dtype",
        "no tensor",
    ],
)
def test_a_file_with_a_false_header_is_named_before_memory_is_allocated(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(contents)
    for read in (read_tensors, read_shapes):
        refused(read, path)


def test_a_tensor_that_is_not_there_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    with pytest.raises(ValueError, match="model.safetensors: .*nothing"), open_tensors(path) as file:
        file.get_tensor("nothing")


def test_a_place_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^there: wrong$"), naming("there"), naming("there"):
        raise ValueError("wrong")
