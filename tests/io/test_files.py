"""Output files: what is said where they cannot be written, logs that were cut off, and folders that one run has."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import nn

from mmspec.io.files import (
    WriteError,
    append_lines,
    locked,
    replacing,
    whole_lines,
    write_json_atomic,
    write_text_atomic,
    writing,
)
from mmspec.training.checkpoint import save_state


@contextmanager
def no_room(most: int = 64) -> Iterator[None]:
    """Files of this process cannot grow beyond `most` bytes: every writer, compiled ones too, is told so by the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _tensors(path: Path) -> None:
    with replacing(path) as temporary:
        save_file({"a": torch.zeros(5000)}, temporary)


def _picture(path: Path) -> None:
    with replacing(path) as temporary:
        Image.effect_noise((64, 64), 50).save(temporary, format="PNG")


def _tokenizer(path: Path) -> None:
    with replacing(path) as temporary:
        Tokenizer(models.BPE(vocab={f"token{i}": i for i in range(500)}, merges=[])).save(str(temporary))


def _state(path: Path) -> None:
    layer = nn.Linear(64, 64)
    save_state(path, layer, torch.optim.AdamW(layer.parameters()), 1)


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text_atomic(path, "x" * 5000),
    "json": lambda path: write_json_atomic(path, ["x" * 5000]),
    "log": lambda path: append_lines(path, ["x" * 5000]),
    "safetensors": _tensors,
    "tokenizer": _tokenizer,
    "picture": _picture,
    "training state": _state,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_cannot_be_written_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out.file"
    with no_room(), pytest.raises(OSError) as caught:
        WRITERS[kind](path)
    assert (
        str(caught.value) == f"expected to write {str(path)!r}, got 'File too large', make room or write somewhere else"
    )
    assert caught.value.errno == errno.EFBIG
    if kind != "log":
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full disk to write to")
def test_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match="expected to write '/dev/full', got 'No space left on device'") as caught:
        append_lines("/dev/full", ["line"])
    assert caught.value.errno == errno.ENOSPC


def test_write_errors_name_the_innermost_file_also_without_an_error_number(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="expected to write 'inner', got 'encoder error'"):
        with writing(tmp_path / "outer"), writing("inner"):
            raise OSError("encoder error")


def test_errors_over_other_files_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, writing(tmp_path / "mine"):
        open(tmp_path / "other")
    assert caught.value.filename == str(tmp_path / "other")
    with pytest.raises(BrokenPipeError), writing(tmp_path / "mine"):
        raise BrokenPipeError(32, "Broken pipe")
    with pytest.raises(ValueError, match="^other$"), writing(tmp_path / "mine"):
        raise ValueError("other")


def test_a_line_truncated_by_a_kill_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert whole_lines(log) == []
    append_lines(log, ["one", "two"])
    assert whole_lines(log) == ["one", "two"]
    with log.open("a") as handle:
        handle.write("thr")
    assert whole_lines(log) == ["one", "two"]
    append_lines(log, ["th\u2028ree\x1c"])
    assert whole_lines(log) == ["one", "two", "th\u2028ree\x1c"]
    log.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="log.jsonl: expected UTF-8 text"):
        whole_lines(log)


def test_a_folder_is_locked_by_a_single_run_and_freed_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "work"
    with locked(folder):
        with pytest.raises(ValueError, match=f"no other run is writing to, got .*, which process {os.getpid()} holds"):
            with locked(folder):
                pass
        with pytest.raises(OSError, match="^elsewhere$"):
            raise OSError("elsewhere")
    with locked(folder):
        pass


def test_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys; from mmspec.io.files import locked; locked(sys.argv[1]).__enter__(); os.kill(os.getpid(), 9)"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, timeout=60, check=False)
    assert died.returncode == -9 and (tmp_path / "lock").read_text()
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
