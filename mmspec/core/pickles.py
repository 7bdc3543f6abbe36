"""Pickled checkpoints: the one place that opens them, for the commands that convert them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch


def unpickle(path: Path) -> Mapping[str, Any]:
    """What a .pt or .pth file holds: tensors, plain containers and the parsed command line of its training, no code.

    Raises ValueError for a missing file and one that holds anything else.
    """
    if not path.is_file():
        raise ValueError(f"{path}: expected a checkpoint file, got none there; check the path")
    try:
        # training files also keep the parsed command line, a plain namespace
        with torch.serialization.safe_globals([Namespace]):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception as error:  # a file that is no checkpoint makes the unpickler raise nearly anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path}: expected a pickled state dict of tensors, got a file that does not open as one ({reason}); "
                         "check the file") from error  # fmt: skip
    if not isinstance(state, Mapping):
        raise ValueError(f"{path}: expected a state dict, got {type(state).__name__}; check the file")
    return state
