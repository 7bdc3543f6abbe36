"""GGUF files: their metadata and table of tensors, checked against the size of the file before a tensor is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAGIC, SUFFIX = b"GGUF", ".gguf"


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
    """Read the header of a GGUF file by the package `gguf`. All tensors lie within the file and are of types that can be
    dequantised."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a GGUF file, got none there; check the path")
    if not is_gguf(path):
        raise ValueError(f"{path}: expected a GGUF file, got a file that does not begin with GGUF; check the file")
    try:
        reader = _bounded_reader()(path)
        if reader.endianess != need_gguf().GGUFEndian.LITTLE:
            raise ValueError("numbers with the most significant byte first")
        metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        tensors = tuple(_row(tensor) for tensor in reader.tensors)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: expected a whole GGUF file, got {reason}; fetch or convert it again") from error
    return GgufFile(path, metadata, tensors)


def _bounded_reader() -> type:
    """Return the package's reader with a check of every read against the end of the file: its own loops would go on
    over the empty arrays behind the end, as often as a damaged count says."""
    import numpy as np

    gguf = need_gguf()

    class BoundedReader(gguf.GGUFReader):
        def _need(self, offset: int, count: int) -> None:
            if offset + count > len(self.data):
                raise ValueError(f"a file that is cut off or damaged: it ends at byte {len(self.data):,}")

        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **how: Any) -> np.ndarray:
            self._need(offset, np.dtype(dtype).itemsize * int(count))
            return super()._get(offset, dtype, count, *more, **how)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == gguf.GGUFValueType.ARRAY:
                kind = int(self._get(orig_offs, np.uint32)[0])
                count = int(self._get(orig_offs + 4, np.uint64)[0])
                if kind == gguf.GGUFValueType.ARRAY:
                    raise ValueError("a metadata list of lists")
                scalar = self.gguf_scalar_to_np.get(kind, np.uint64)  # a text begins with its length
                self._need(orig_offs + 12, count * np.dtype(scalar).itemsize)
                if kind in self.gguf_scalar_to_np:  # at once, where the library reads each number alone
                    parts = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
                    parts.append(self._get(orig_offs + 12, scalar, count))
                    types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
                    return sum(int(part.nbytes) for part in parts), parts, [2], types
            return super()._get_field_parts(orig_offs, raw_type)

    return BoundedReader


def _row(tensor: Any) -> GgufTensor:
    """Return a tensor of the reader if the package `gguf` can dequantise it."""
    import numpy as np

    gguf = need_gguf()
    kind, shape = tensor.tensor_type, tuple(int(size) for size in reversed(tensor.shape))
    if not shape or 0 in shape:
        raise ValueError(f"a tensor {tensor.name!r:.40} of shape {shape}")
    try:
        gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError as error:
        raise ValueError(f"a tensor {tensor.name} of type {kind.name}, which gguf does not dequantise") from error
    return GgufTensor(tensor.name, shape, kind.name, int(tensor.data_offset), int(tensor.n_bytes))
