from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.imagegen.components import read_weights, write_component
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.published import (
    from_lantern,
    gpt_fields,
    implied_resolution,
    is_lantern,
    null_caption_rows,
    unwrap,
    vq_fields,
)
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from mmspec.io.loading import fill_from_state_dict, sketch, unpickle
from mmspec.io.readers import naming


def llamagen_from_state_dict(
    sd: Mapping[str, Any] | str | Path, config: GPTConfig | Mapping[str, Any] | None = None
) -> Transformer:
    """Load the transformer of a published checkpoint in eval mode, in the checkpoint's dtype.

    Args:
        sd: Tensors under the published names or those of LANTERN's target, raw or wrapped, of any size; or a
            .safetensors file. They become the weights without a copy, so meta tensors give a model on the meta device.
        config: Published field names; fields that follow from the weights may be left out. `image_size` (with
            `downsample_size`, 16 by default) may replace block_size, and must agree with it otherwise. No weight
            depends on block_size: without it in the config or in the file's "freqs_cis", it is the public class's 256.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen; a field has a wrong type; the model_type differs from the
            config's; or the resolution contradicts the config or the file.
    """
    weights, buffers = _read(sd)
    with _named(sd):
        if is_lantern(weights):
            weights = from_lantern(weights)
        fields = gpt_fields(weights, config.to_dict() if isinstance(config, GPTConfig) else dict(config or {}))
        fields = implied_resolution(fields, next((v for k, v in buffers.items() if k.endswith("freqs_cis")), None))
        config, rows = GPTConfig.of(fields), null_caption_rows(weights)
        return fill_from_state_dict(sketch(lambda: Transformer(config, rows), len(weights), "config"), weights)


def vq_from_state_dict(
    sd: Mapping[str, Any] | str | Path, config: VQConfig | Mapping[str, Any] | None = None
) -> VQModel:
    """Load the image tokenizer of a published checkpoint; arguments and errors are as in `llamagen_from_state_dict`.

    Args:
        sd: The tensors or the file.
        config: Fields that follow from the weights may be left out. Normalised codes do not follow from them and are
            the default.
    """
    weights, _ = _read(sd)
    with _named(sd):
        config = config if isinstance(config, VQConfig) else VQConfig.of({**vq_fields(weights), **dict(config or {})})
        return fill_from_state_dict(sketch(lambda: VQModel(config), len(weights), "config"), weights)


def check_pair(config: GPTConfig, vq: VQConfig, image_size: int | None = None) -> None:
    if config.vocab_size != vq.codebook_size:
        raise ValueError(
            f"vq: expected a codebook of vocab_size {config.vocab_size}, got {vq.codebook_size}; use the "
            "tokenizer the transformer was trained with"
        )
    side = config.grid * vq.downsample
    if image_size is not None and image_size != side:
        raise ValueError(
            f"image_size: expected {side} ({config.grid} tokens of {vq.downsample} pixels per side), got "
            f"{image_size}; use the checkpoint of that resolution"
        )


# c2i_B_256.pt, t2i_XL_stage2_512.pt
_PUBLISHED = re.compile(r"[ct]2i_.*_(\d{3})$")


def convert_llamagen(
    path: str | Path,
    folder: str | Path,
    *,
    config: GPTConfig | Mapping[str, Any] | None = None,
    image_size: int | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write model.safetensors and config.json of a pickled transformer or tokenizer; code in the file is not run.
    `image_size` is in pixels per side, needed where the file's name and the config do not give it."""
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        if any(name.startswith("encoder.conv_in.") for name in unwrap(state)[0]):
            model = vq_from_state_dict(state, config)
        else:
            model = llamagen_from_state_dict(state, _with_size(path, config, image_size))
    write_component(model if dtype is None else model.to(dtype), folder)
    return folder


def _with_size(path: Path, config: GPTConfig | Mapping[str, Any] | None, image_size: int | None) -> dict[str, Any]:
    known = config.to_dict() if isinstance(config, GPTConfig) else dict(config or {})
    named = _PUBLISHED.match(path.stem)
    if image_size is None and named:
        image_size = int(named[1])
    elif image_size is None and not {"block_size", "image_size"} & set(known):
        raise ValueError(
            f"image_size: expected the pixels per side that {path.name} was trained for, got none, and no weight "
            "determines them; give image_size"
        )
    elif named and image_size != int(named[1]):
        raise ValueError(
            f"image_size: expected {named[1]} as in the name {path.name}, got {image_size}; leave image_size out"
        )
    return known if image_size is None else {**known, "image_size": image_size}


def _read(sd: Mapping[str, Any] | str | Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return unwrap(sd if isinstance(sd, Mapping) else read_weights(sd))


def _named(sd: Mapping[str, Any] | str | Path) -> AbstractContextManager:
    return nullcontext() if isinstance(sd, Mapping) else naming(sd)
