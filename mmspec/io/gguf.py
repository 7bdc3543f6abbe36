"""GGUF files: their metadata and table of tensors, checked against the size of the file before a tensor is read."""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAGIC, SUFFIX = b"GGUF", ".gguf"
VERSIONS = (2, 3)
_ALIGNMENT = 32  # bytes, where the metadata name no other
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9  # types of metadata values without a fixed width
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A row of the table of tensors."""

    name: str  # in llama.cpp, such as "blk.0.attn_q.weight"
    shape: tuple[int, ...]  # in torch's order, the longest stride first
    kind: str  # the name of the type, such as "Q4_1"
    start: int  # first byte in the file
    length: int  # bytes in the file


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Metadata and tensors of a GGUF file."""

    path: Path
    metadata: dict[str, Any]  # key -> number, string, truth value or list of these
    tensors: tuple[GgufTensor, ...]  # in the order of the file

    def value(self, key: str, kind: type) -> Any:
        """Return the metadata value of a key, which has to be of this type."""
        value = self.metadata.get(key)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            got = "none" if value is None else f"{value!r:.40}"
            raise ValueError(
                f"{self.path}: expected the key {key} of type {kind.__name__} in the metadata, got {got}; "
                "convert the model to GGUF again"
            )
        return value

    def kinds(self) -> dict[str, int]:
        """Return the number of tensors of each type."""
        return dict(Counter(tensor.kind for tensor in self.tensors).most_common())

    def dequantize(self, tensor: GgufTensor) -> np.ndarray:
        """Return a tensor's numbers, float32 in its shape; they may be a view of the file: do not write to them."""
        import numpy as np  # imported late to keep the command line fast

        gguf = need_gguf()
        kind = gguf.GGMLQuantizationType[tensor.kind]
        block, width = gguf.GGML_QUANT_SIZES[kind]
        data = np.memmap(self.path, np.uint8, "r", tensor.start, (tensor.length,))
        rows = data.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * width)
        return gguf.quants.dequantize(rows, kind).reshape(tensor.shape)


def need_gguf() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise ValueError('gguf: expected the package gguf, got none; pip install "mmspec[real]"') from error
    return gguf


def is_gguf(path: Path) -> bool:
    """Return whether a file begins with the GGUF magic."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file. All tensors lie within the file and are of types that can be dequantised."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a GGUF file, got none there; check the path")
    if not is_gguf(path):
        raise ValueError(f"{path}: expected a GGUF file, got a file that does not begin with GGUF; check the file")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        with _damaged(path):
            cursor = _Cursor(data, len(MAGIC))
            version = cursor.number("I")
            if version not in VERSIONS:
                raise ValueError(f"version {version} instead of {' or '.join(map(str, VERSIONS))}")
            tensors, values = cursor.number("Q"), cursor.number("Q")
            metadata = dict(cursor.entry() for _ in cursor.counted(values, 12))
            table = [cursor.row() for _ in cursor.counted(tensors, 24)]
            places = _places(table, _start(cursor.at, metadata), len(data))
    return GgufFile(path, metadata, places)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: expected a whole GGUF file, got {error}; fetch or convert it again") from error


def _start(end: int, metadata: dict[str, Any]) -> int:
    """Return the first aligned byte after a header that ends at `end`."""
    step = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(step, int) or step < 1 or step & (step - 1):
        raise ValueError(f"an alignment of {step!r} bytes instead of a power of two")
    return -(-end // step) * step


def _places(table: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int) -> tuple[GgufTensor, ...]:
    """Return the rows of the table with their byte ranges, checked against the `size` of the file."""
    gguf = need_gguf()
    known = {kind.value: kind for kind in gguf.GGMLQuantizationType}
    if repeated := [name for name, count in Counter(name for name, *_ in table).items() if count > 1]:
        raise ValueError(f"two tensors called {repeated[0]}")
    kinds = {number: _readable(known.get(number), number, name) for name, _, number, _ in table}
    tensors = []
    for name, shape, number, offset in table:
        block, width = gguf.GGML_QUANT_SIZES[kinds[number]]
        if shape[-1] % block:
            raise ValueError(f"a tensor {name} whose rows of {shape[-1]} are not made of blocks of {block}")
        tensor = GgufTensor(name, shape, kinds[number].name, start + offset, prod(shape) // block * width)
        if tensor.start + tensor.length > size:
            raise ValueError(f"a tensor {name} that ends at byte {tensor.start + tensor.length:,} of {size:,}")
        tensors.append(tensor)
    return tuple(tensors)


def _readable(kind: Any, number: int, name: str) -> Any:
    import numpy as np

    gguf = need_gguf()
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (KeyError, NotImplementedError) as error:
        named = number if kind is None else kind.name
        raise ValueError(f"a tensor {name} of type {named}, which gguf does not dequantise") from error
    return kind


class _Cursor:
    """A position in the bytes of a header, `at` the next byte, checked against the end of the file at every step."""

    def __init__(self, data: mmap.mmap, at: int):
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError(f"a header that is cut off at byte {len(self.data):,}")
        self.at += count
        return self.data[self.at - count : self.at]

    def counted(self, count: int, least: int) -> range:
        """Return a range over `count` entries of at least `least` bytes each, if the file can hold them."""
        if count * least > len(self.data) - self.at:
            raise ValueError(f"a header that is cut off or damaged: {count:,} entries in {len(self.data):,} bytes")
        return range(count)

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"text that is no UTF-8 before byte {self.at:,}") from error

    def entry(self) -> tuple[str, Any]:
        return self.text(), self.value(self.number("I"))

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"a metadata value of type {kind} before byte {self.at:,}")
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            self.counted(count, struct.calcsize(f"<{code}"))
            return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"))))
        if kind != _STRING:
            raise ValueError(f"a metadata list of type {kind} before byte {self.at:,}")
        return [self.text() for _ in self.counted(count, 8)]

    def row(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read name, shape, type and offset of a tensor."""
        name, dimensions = self.text(), self.number("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"a tensor {name!r:.40} of {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        if 0 in shape:
            raise ValueError(f"a tensor {name!r:.40} of shape {shape}")
        return name, shape[::-1], self.number("I"), self.number("Q")
