"""Published Wan checkpoints: key names, loading and saving, and presets of the published models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.io.loading import fill_from_state_dict, sketch, unpickle, unwrap_state, without_prefixes
from mmspec.io.pretrained import CONFIG, WEIGHTS, write_weights
from mmspec.io.readers import naming, read_json, read_tensors
from mmspec.io.validation import check_types
from mmspec.video.generation import FewStep
from mmspec.video.model import BlockPlan
from mmspec.video.vae import StreamingVAE
from mmspec.video.wan.rebuilt import Rebuilt
from mmspec.video.wan.transformer import CausalWan
from mmspec.video.wan.video import Cached, WanVideo
from mmspec.video.wan.wan_config import WanConfig, heads_of, own_names

# averaged weights come first: the published samples were generated with them
WRAPPERS = ("generator_ema", "generator", "state_dict", "module")
_PREFIXES = ("model.", "diffusion_model.", "module.")
_WRAPPED = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")

# name in the causal models -> name in diffusers, without the last part (weight or bias)
_TOP = {
    "patch_embedding": "patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
}
_PARTS = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", "norm_q": "norm_q", "norm_k": "norm_k"}
_LAYER = {
    **{f"self_attn.{part}": f"attn1.{name}" for part, name in _PARTS.items()},
    **{f"cross_attn.{part}": f"attn2.{name}" for part, name in _PARTS.items()},
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
}
# tables, whose names have no last part
_TABLES = {"head.modulation": "scale_shift_table"}
_LAYER_TABLES = {"modulation": "scale_shift_table"}
_LAYER_NUMBER = re.compile(r"blocks\.(\d+)\.")
_NUMBERED = re.compile(r"^(blocks\.\d+)\.(.+)$")


def unwrapped(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, from "generator_ema" or "generator" if present, without prefixes of wrappers."""
    return {_bare(name): value for name, value in unwrap_state(state, WRAPPERS).items()}


def _bare(name: str) -> str:
    for part in _WRAPPED:
        name = name.replace(part, "")
    return without_prefixes(name, _PREFIXES)


def is_causal(state: Mapping[str, Any]) -> bool:
    return any(".self_attn." in name or name.startswith(("head.", "time_embedding.")) for name in state)


def to_diffusers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a causal checkpoint's tensors under diffusers' names; unknown names are unchanged."""
    return {_diffusers_name(name): value for name, value in state.items()}


def _diffusers_name(name: str) -> str:
    numbered = _NUMBERED.match(name)
    prefix, rest = (f"{numbered[1]}.", numbered[2]) if numbered else ("", name)
    whole, parts = (_LAYER_TABLES, _LAYER) if numbered else (_TABLES, _TOP)
    if rest in whole:
        return prefix + whole[rest]
    owner, _, last = rest.rpartition(".")
    return f"{prefix}{parts[owner]}.{last}" if owner in parts else name


def wan_from_state_dict(sd: Mapping[str, Any], config: WanConfig | Mapping[str, Any] | None = None) -> CausalWan:
    """Load the block-causal model of a Wan checkpoint, in eval mode, in the checkpoint's dtype.

    Args:
        sd: Tensors of any size under the names of the causal checkpoints (Self-Forcing, CausVid, Krea), also under
            "generator_ema" or "generator", or under diffusers' names. They become the weights without a copy; meta
            tensors give a model on the meta device.
        config: Field names of either; fields that follow from the weights may be left out. The number of heads does
            not follow from them, except for published widths.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen, or a field has a wrong type.
    """
    weights = unwrapped(sd)
    declared = config.to_dict() if isinstance(config, WanConfig) else own_names(config or {})
    if is_causal(weights):
        weights = to_diffusers(weights)
        declared.setdefault("text_len", 512)  # these models pad; with diffusers the text encoder pads
    sizes = WanConfig.of(_fields(weights, declared))
    return fill_from_state_dict(sketch(lambda: CausalWan(sizes), len(weights), "config"), weights)


def _fields(weights: Mapping[str, Tensor], declared: dict[str, Any]) -> dict[str, Any]:
    """Return the declared fields, and sizes from the weights for the others."""
    check_types(WanConfig, declared)
    known: dict[str, Any] = {
        "in_channels": _size(weights, "patch_embedding.weight", 1),
        "out_channels": _size(weights, "patch_embedding.weight", 1),
        "text_dim": _size(weights, "condition_embedder.text_embedder.linear_1.weight", 1),
        "freq_dim": _size(weights, "condition_embedder.time_embedder.linear_1.weight", 1),
        "ffn_dim": _size(weights, "blocks.0.ffn.net.0.proj.weight", 0),
        "num_layers": 1 + max((int(match[1]) for name in weights if (match := _LAYER_NUMBER.match(name))), default=-1),
    }
    known = {name: size for name, size in known.items() if size}
    known["cross_attn_norm"] = "blocks.0.norm2.weight" in weights
    patch = weights.get("patch_embedding.weight")
    if patch is not None and patch.dim() == 5:
        known["patch_size"] = tuple(patch.shape[2:])
    known |= declared
    if width := _size(weights, "patch_embedding.weight", 0):
        if "num_attention_heads" not in known:
            size = known.get("attention_head_dim")
            known["num_attention_heads"] = width // size if size else heads_of(width)
        if known["num_attention_heads"] > 0:
            known.setdefault("attention_head_dim", width // known["num_attention_heads"])
    return known


def _size(weights: Mapping[str, Tensor], key: str, axis: int) -> int | None:
    value = weights.get(key)
    return None if value is None or value.dim() <= axis else value.shape[axis]


_STEMS = ("model", "diffusion_pytorch_model")


def load_wan(path: str | Path, config: WanConfig | Mapping[str, Any] | None = None) -> CausalWan:
    """Load the model in a folder, with config.json beside one or more files of weights, or in a safetensors file.

    Args:
        path: The folder or the file.
        config: Fields that neither the weights nor config.json determine; they override those of the file.

    Raises:
        ValueError: A file is missing, damaged or of another model.
    """
    path = Path(path)
    declared = config.to_dict() if isinstance(config, WanConfig) else dict(config or {})
    if path.is_dir():
        stored = read_json(path / CONFIG) if (path / CONFIG).is_file() else {}
        weights = _of_folder(path)
    else:
        stored, weights = {}, _of_file(path)
    with naming(path):
        return wan_from_state_dict(weights, {**stored, **declared})


def save_wan(model: CausalWan, folder: str | Path) -> None:
    """Write weights, under diffusers' names, and config into a folder, which is created if needed."""
    write_weights(model.state_dict(), model.config.to_dict(), folder)


def convert_wan(
    path: str | Path, folder: str | Path, *, config: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> Path:
    """Write model.safetensors and config.json of a pickled checkpoint, of its averaged generator if present; its code
    is not run. `config` are fields that the weights do not determine; `dtype` None is the file's."""
    path, folder = Path(path), Path(folder)
    state = unpickle(path)
    with naming(path):
        model = wan_from_state_dict(state, config)
    save_wan(model if dtype is None else model.to(dtype), folder)
    return folder


def _of_file(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{path}: expected a folder or a .safetensors file, got {path.suffix or 'neither'}; convert a pickle with "
            f"`mmspec convert {path} FOLDER --kind wan`"
        )
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
            named = sorted({Path(name).name for name in files.values()})  # only files beside the index are read
            return {name: value for file in named for name, value in read_tensors(folder / file).items()}
    raise ValueError(
        f"{folder}: expected {WEIGHTS} or {_STEMS[1]}.safetensors, got neither; convert a pickle with "
        f"`mmspec convert FILE {folder} --kind wan`"
    )


def self_forcing(transformer: CausalWan, *, window: int | None = None, sinks: int | None = None) -> WanVideo:
    """Return Self-Forcing (1.3B): four steps with fresh noise at shift 5, and blocks of three latent frames. `window`
    frames are visible, for videos beyond the 21 latent frames of training; None is the config's, as for `sinks`."""
    return WanVideo(transformer, Cached(window, sinks), FewStep(), BlockPlan(3), name="self-forcing")


def causvid(
    transformer: CausalWan, *, steps: Literal[3, 4] = 3, window: int | None = None, sinks: int | None = None
) -> WanVideo:
    """Return CausVid (1.3B) at shift 8, with 3 steps, unwarped, or 4, warped; otherwise it is set up as Self-Forcing."""
    lists = {3: FewStep((1000, 757, 522), shift=8.0, warp=False), 4: FewStep(shift=8.0)}
    if steps not in lists:
        raise ValueError(f"steps: expected 3 or 4, got {steps!r}; make a WanVideo with a FewStep for others")
    return WanVideo(transformer, Cached(window, sinks), lists[steps], BlockPlan(3), name="causvid")


def krea(transformer: CausalWan, vae: StreamingVAE | None = None, *, steps: int = 5) -> WanVideo:
    """Return Krea Realtime (14B): `steps` passes, the last at 0, with a context of three latents, read anew per block.
    `vae` encodes the first of them from pixels, see `Rebuilt`."""
    return WanVideo(transformer, Rebuilt(3, vae), FewStep.krea(steps), BlockPlan(3), name="krea")
