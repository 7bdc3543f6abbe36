"""Pickled reward checkpoints into safetensors, only when asked to.

python -m mmspec.video.rewards.convert ImageReward.pt imagereward.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import save_file

from mmspec.io.files import replacing
from mmspec.io.loading import unpickle
from mmspec.io.readers import naming
from mmspec.video.rewards.state_dicts import weights_of


def convert(path: str | Path, out: str | Path) -> Path:
    """Writes the weights of a pickled ImageReward or HPSv2 to a .safetensors file, under their own names.

    Only tensors and plain containers are unpickled; code in the file is not run, and what is beside the weights (epochs,
    optimizers) is left out. Raises ValueError for a file that holds anything else, and an `out` of another suffix.
    """
    path, out = Path(path), Path(out)
    if out.suffix != ".safetensors":
        raise ValueError(
            f"{out}: expected a name that ends in .safetensors, got {out.suffix or 'no suffix'}; choose such a name"
        )
    with naming(path):
        weights = weights_of(unpickle(path))
    with replacing(out) as temporary:
        # tensors that share memory in the pickle do not in the file
        save_file({name: value.clone().contiguous() for name, value in weights.items()}, temporary)
    return out


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="mmspec.video.rewards.convert", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="ImageReward.pt, or HPS_v2.1_compressed.pt")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    given = parser.parse_args(arguments)
    try:
        convert(given.path, given.out)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
