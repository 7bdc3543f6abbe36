"""Pickled causal Wan checkpoints into safetensors, only when asked to.

python -m mmspec.video.wan.convert self_forcing_dmd.pt FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.io.loading import unpickle
from mmspec.io.readers import naming
from mmspec.video.wan.checkpoints import save_wan, wan_from_state_dict

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    path: str | Path, folder: str | Path, *, config: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Writes `folder`/model.safetensors and config.json from a pickled checkpoint; its averaged generator where it has one.

    Only tensors and plain containers are unpickled; code in the file is not run.
    config: what the weights do not tell, as the loader takes it.   dtype: of the written weights, None for the file's.
    Raises ValueError as the loader does.
    """
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        model = wan_from_state_dict(state, config)
    save_wan(model if dtype is None else model.to(dtype), folder)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="mmspec.video.wan.convert", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="a .pt file of Self-Forcing, CausVid or their like")
    parser.add_argument("folder", type=Path, help="where model.safetensors and config.json go")
    parser.add_argument("--heads", type=int, help="attention heads, for sizes that were not published")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="of the written weights; the file's own by default")
    given = parser.parse_args(arguments)
    config = None if given.heads is None else {"num_heads": given.heads}
    try:
        convert(given.path, given.folder, config=config, dtype=_DTYPES.get(given.dtype))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
