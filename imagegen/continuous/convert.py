"""Pickled MAR checkpoints and autoencoders into safetensors, only when asked to.

python -m mmspec.imagegen.continuous.convert checkpoint-last.pth FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.imagegen.components import write_component
from mmspec.imagegen.continuous.kl import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.load import WRAPPERS, mar_from_state_dict
from mmspec.imagegen.llamagen.published import unwrap
from mmspec.io.loading import unpickle
from mmspec.io.readers import naming

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    path: str | Path, folder: str | Path, *, config: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Writes `folder`/model.safetensors and config.json from a pickled MAR (its averaged weights) or KL autoencoder.

    Only tensors and plain containers are unpickled; code in the file is not run.
    config: what the weights do not tell, as the loaders take it.   dtype: of the written weights, None for the file's.
    Raises ValueError as the loaders do.
    """
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        weights, _ = unwrap(state, WRAPPERS)
        vae = "post_quant_conv.weight" in weights
        model = (kl_from_state_dict if vae else mar_from_state_dict)(weights, config)
    model = model if dtype is None else model.to(dtype)
    (write_kl if vae else write_component)(model, folder)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="mmspec.imagegen.continuous.convert", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="a .pth file of MAR, or the .ckpt of its autoencoder")
    parser.add_argument("folder", type=Path, help="where model.safetensors and config.json go")
    parser.add_argument("--heads", type=int, help="attention heads, for sizes that were not published")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="of the written weights; the file's own by default")
    given = parser.parse_args(arguments)
    config = None
    if given.heads is not None:
        config = {"encoder_num_heads": given.heads, "decoder_num_heads": given.heads}
    try:
        convert(given.path, given.folder, config=config, dtype=_DTYPES.get(given.dtype))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
