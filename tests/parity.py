"""Cases computed by the public implementations, read from a folder beside the checkout where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parents[2] / "shared" / "parity"


def case(name: str) -> dict[str, Tensor]:
    """Tensors of the case `area/name`; skips the test where the cases are not present."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        pytest.skip(f"no parity case {name} beside the checkout")
    return load_file(path)
