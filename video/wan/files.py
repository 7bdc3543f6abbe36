"""A Wan transformer in a folder or a file of safetensors: ours, diffusers', or a causal checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.readers import naming, read_json, read_tensors
from mmspec.video.wan.config import WanConfig
from mmspec.video.wan.load import wan_from_state_dict
from mmspec.video.wan.transformer import CausalWan

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_STEMS = ("model", "diffusion_pytorch_model")
CONVERT = "mmspec.video.wan.convert"


def load_wan(path: str | Path, config: WanConfig | Mapping[str, Any] | None = None) -> CausalWan:
    """The model in a folder (its config.json beside the weights, which may be in several files) or in one safetensors file.

    config: of what neither the weights nor config.json tell; its fields go before those of the file.
    Raises ValueError, one sentence with the path, for missing, damaged and foreign files.
    """
    path = Path(path)
    given = config.to_dict() if isinstance(config, WanConfig) else dict(config or {})
    if path.is_dir():
        stored = read_json(path / CONFIG) if (path / CONFIG).is_file() else {}
        weights = _of_folder(path)
    else:
        stored, weights = {}, _of_file(path)
    with naming(path):
        return wan_from_state_dict(weights, {**stored, **given})


def save_wan(model: CausalWan, folder: str | Path) -> None:
    """Writes weights, under diffusers' names, and config into a folder, made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, temporary)
    write_json_atomic(folder / CONFIG, model.config.to_dict())


def _of_file(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: expected a folder or a .safetensors file, got {path.suffix or 'neither'}; convert a pickle "
                         f"with `python -m {CONVERT} {path} FOLDER`")  # fmt: skip
    return read_tensors(path)


def _of_folder(folder: Path) -> dict[str, Tensor]:
    for stem in _STEMS:
        if (folder / f"{stem}.safetensors").is_file():
            return read_tensors(folder / f"{stem}.safetensors")
        index = folder / f"{stem}.safetensors.index.json"
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
                raise ValueError(
                    f"{index}: expected a weight_map from tensors to files, got {files!r:.60}; fetch it again"
                )
            named = sorted({Path(name).name for name in files.values()})  # beside the index and nowhere else
            return {name: value for file in named for name, value in read_tensors(folder / file).items()}
    raise ValueError(f"{folder}: expected {WEIGHTS} or {_STEMS[1]}.safetensors, got neither; convert a pickle with "
                     f"`python -m {CONVERT} FILE {folder}`")  # fmt: skip
