"""diffusers' Wan autoencoder in a folder, as diffusers lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.loading import load_module
from mmspec.core.readers import naming, read_json

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"


def read_vae(folder: str | Path) -> AutoencoderKLWan:
    """The autoencoder of a folder that diffusers or `write_vae` wrote, in float32 and eval mode.

    Raises ValueError, one sentence with the file, for missing and damaged files, unknown fields, and weights that do not
    belong to the config.
    """
    from inspect import signature

    from diffusers import AutoencoderKLWan

    folder = Path(folder)
    config = {name: value for name, value in read_json(folder / CONFIG).items() if not name.startswith("_")}
    with naming(folder / CONFIG):
        known = set(signature(AutoencoderKLWan.__init__).parameters) - {"self"}
        if unknown := sorted(config.keys() - known):
            raise ValueError(f"config: expected fields of AutoencoderKLWan, got {unknown}; remove them")
    return load_module(lambda: AutoencoderKLWan(**config), folder / WEIGHTS).requires_grad_(False)


def write_vae(model: AutoencoderKLWan, folder: str | Path) -> None:
    """Writes weights and config into a folder, made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, temporary)
    known = {name: value for name, value in model.config.items() if not name.startswith("_")}
    write_json_atomic(folder / CONFIG, {"_class_name": "AutoencoderKLWan", **known})
