"""Pickled checkpoints into safetensors, only when asked to.

python -m mmspec.imagegen.llamagen.convert c2i_B_256.pt FOLDER
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.imagegen.components import write_component
from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.published import unwrap
from mmspec.io.loading import unpickle
from mmspec.io.readers import naming

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# c2i_B_256.pt, t2i_XL_stage2_512.pt
_PUBLISHED = re.compile(r"[ct]2i_.*_(\d{3})$")


def convert(
    path: str | Path,
    folder: str | Path,
    *,
    config: GPTConfig | Mapping[str, Any] | None = None,
    image_size: int | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Writes `folder`/model.safetensors and config.json from a pickled transformer or tokenizer of LlamaGen.

    Only tensors and plain containers are unpickled; code in the file is not run.
    config: what the weights do not tell, as the loaders take it.
    image_size: pixels a side the transformer was trained for. The published files say it in their names; elsewhere it must
        be given here, or as block_size in the config.   dtype: of the written weights, None for the file's.
    Raises ValueError as the loaders do, and when the resolution is unknown or contradicts the file's name.
    """
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        if _is_vq(state):
            model = vq_from_state_dict(state, config)
        else:
            model = llamagen_from_state_dict(state, _with_size(path, config, image_size))
    folder.mkdir(parents=True, exist_ok=True)
    write_component(model if dtype is None else model.to(dtype), folder)
    return folder


def _is_vq(state: Mapping[str, Any]) -> bool:
    weights, _ = unwrap(state)
    return any(name.startswith("encoder.conv_in.") for name in weights)


def _with_size(path: Path, config: GPTConfig | Mapping[str, Any] | None, image_size: int | None) -> dict[str, Any]:
    known = config.to_dict() if isinstance(config, GPTConfig) else dict(config or {})
    named = _PUBLISHED.match(path.stem)
    if image_size is None and named:
        image_size = int(named[1])
    elif image_size is None and not {"block_size", "image_size"} & set(known):
        raise ValueError(f"image_size: expected the pixels a side that {path.name} was trained for, which no weight tells, "
                         "got none; give it")  # fmt: skip
    elif named and image_size != int(named[1]):
        raise ValueError(f"image_size: expected {named[1]} as the name {path.name} says, got {image_size}; drop it")
    return known if image_size is None else {**known, "image_size": image_size}


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="mmspec.imagegen.llamagen.convert", description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="a .pt file of LlamaGen: transformer or VQ tokenizer")
    parser.add_argument("folder", type=Path, help="where model.safetensors and config.json go")
    parser.add_argument("--image-size", type=int, help="pixels a side, where the file's name does not say it")
    parser.add_argument("--heads", type=int, help="attention heads, for sizes that were not published")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), help="of the written weights; the file's own by default")
    given = parser.parse_args(arguments)
    config = None if given.heads is None else {"n_head": given.heads}
    try:
        convert(given.path, given.folder, config=config, image_size=given.image_size, dtype=_DTYPES.get(given.dtype))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
