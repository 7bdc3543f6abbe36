"""A MAR pipeline in a folder: transformer/, vae/ and a caption encoder where there are such, and an index of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.config_fields import check_types
from mmspec.core.files import write_json_atomic
from mmspec.core.readers import naming, read_json
from mmspec.imagegen.continuous.kl.load import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.load import CONVERT, mar_from_state_dict
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.llamagen.store import load_component, write_component
from mmspec.imagegen.llamagen.text import CaptionEncoder
from mmspec.imagegen.llamagen.text_files import read_captions, write_captions

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

INDEX = "model_index.json"
SETTINGS = ("guidance_scale", "guidance_schedule", "num_iter")


@dataclass(frozen=True, slots=True)
class _Index:
    """What model_index.json says besides names of classes."""

    vae: list | None = None
    text_encoder: list | None = None
    clean_captions: bool = True
    guidance_scale: float | None = None
    guidance_schedule: str | None = None
    num_iter: int | None = None


def read_parts(folder: Path, kind: str) -> tuple[MAR, AutoencoderKL | None, CaptionEncoder | None, dict[str, Any]]:
    """Transformer, autoencoder in float32, caption encoder, and the settings that the index gives; without an index, the
    transformer and the autoencoder that are there.

    Raises ValueError, with the file, for a folder of another `kind` of pipeline, and as the loaders do.
    """
    indexed = (folder / INDEX).exists()
    index = read_json(folder / INDEX) if indexed else {}
    if (found := index.get("_class_name", kind)) != kind:
        raise ValueError(f"{folder / INDEX}: expected a {kind}, got {found!r}; check the folder")
    with naming(folder / INDEX):
        check_types(_Index, index)
    transformer = load_component(folder / "transformer", mar_from_state_dict, CONVERT)
    vae = captions = None
    if index.get("vae") if indexed else (folder / "vae").is_dir():
        vae = load_component(folder / "vae", kl_from_state_dict, CONVERT).float()
    if index.get("text_encoder"):
        captions = read_captions(folder, transformer.config.buffer_size, cleaned=index.get("clean_captions", True))
    return transformer, vae, captions, {name: index[name] for name in SETTINGS if index.get(name) is not None}


def save_parts(
    folder: Path, kind: str, transformer: MAR, vae: AutoencoderKL | None, captions: object, settings: dict[str, Any]
) -> None:
    """Writes what `read_parts` reads; the index comes last.   Raises ValueError as `write_captions` does."""
    index = {"_class_name": kind, "transformer": ["mmspec", "MAR"], **settings}
    if captions is not None:
        index |= write_captions(captions, folder)
    write_component(transformer, folder / "transformer")
    if vae is not None:
        write_kl(vae, folder / "vae")
        index["vae"] = ["diffusers", "AutoencoderKL"]
    write_json_atomic(folder / INDEX, index)
