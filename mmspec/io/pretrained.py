"""Saving and loading of trained modules: our own folders, which hold config.json and one safetensors file only, and
published drafters, whose names and fields are converted to those of a DraftLayer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.io.files import replacing, write_json_atomic
from mmspec.io.int8_weights import quantise_rows
from mmspec.io.loading import abbreviated, load_module, non_finite
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import from_fields

ZOO = "zoo:"
CONFIG, WEIGHTS, FORMAT = "config.json", "model.safetensors", 1


class Pretrained(nn.Module):
    """Base of trained drafters, saved as a config and weights. Each domain has a root class with its own `kinds`. A
    subclass sets `kind` and `config_class`, has its config, a dataclass, as the only argument, and is in `kinds`."""

    kind: ClassVar[str]
    config_class: ClassVar[type]
    kinds: ClassVar[dict[str, type[Pretrained]]]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:  # shared base classes have no kind
            cls.kinds[cls.kind] = cls

    def __init__(self, config: object):
        super().__init__()
        self.config = config

    def save_pretrained(self, folder: str | Path, *, dtype: object = None) -> None:
        """Write config.json and model.safetensors to a folder, which is made where it is missing. `dtype` is that of
        the stored weights; int8 stores matrices in eight bits with a scale per row. None keeps their own."""
        state = {name: value.detach() for name, value in self.state_dict().items()}
        is_int8 = dtype == torch.int8
        state = quantise_rows(state) if is_int8 else {name: _as(value, dtype) for name, value in state.items()}
        write_weights(state, {"format_version": FORMAT, "kind": self.kind, **asdict(self.config)}, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load a folder of `save_pretrained`, in float32 and eval mode."""
        folder = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():
                raise ValueError(f"drafter: expected {name} in {folder}, got none; save a drafter with save_pretrained")
        raw = read_json(folder / CONFIG)
        kind, version = raw.pop("kind", None), raw.pop("format_version", None)
        drafter_class = cls.kinds.get(kind) if isinstance(kind, str) else None
        if drafter_class is None or not issubclass(drafter_class, cls):
            raise ValueError(f"drafter: expected a kind of {sorted(cls.kinds)}, got {kind!r} in {folder}")
        if version != FORMAT:
            raise ValueError(f"drafter: expected format_version {FORMAT}, got {version!r} in {folder}")
        with naming(folder / CONFIG):
            config = from_fields(drafter_class.config_class, raw)
        return load_module(lambda: drafter_class(config), folder / WEIGHTS).requires_grad_(False)


def write_weights(
    state: Mapping[str, Tensor], config: Mapping[str, Any], folder: str | Path, name: str = WEIGHTS
) -> None:
    """Write tensors and then config.json into a folder, which is made where it is missing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / name) as path:
        save_file({key: value.contiguous() for key, value in state.items()}, path)
    write_json_atomic(folder / CONFIG, config)


def from_zoo(path_or_repo: str | Path) -> Any:
    """Load the zoo's "zoo:NAME"; return None for any other text."""
    if not str(path_or_repo).startswith(ZOO):
        return None
    # imported by name, since the zoo imports this module
    return import_module("mmspec.zoo.files.registry").load(str(path_or_repo).removeprefix(ZOO))


def _as(value: Tensor, dtype: object) -> Tensor:
    """Cast float weights to a dtype, None for their own; token ids and masks are unchanged."""
    return value.to(dtype or value.dtype) if value.is_floating_point() else value


def folder_of(path_or_repo: str | Path, patterns: Sequence[str] = ("*.json", "*.safetensors")) -> Path:
    """Return the folder of weights: a folder, the id of a hub repository (the only case that uses the network), or
    "zoo:NAME". `patterns` are the files to fetch from a repository."""
    if not isinstance(path_or_repo, str | Path):
        raise ValueError(
            f"path_or_repo: expected a folder or a hub id 'owner/name', got {path_or_repo!r:.60}; pass either"
        )
    if str(path_or_repo).startswith(ZOO):
        # imported by name, since the zoo imports this module
        registry = import_module("mmspec.zoo.files.registry")
        return registry.folder_with_weights(str(path_or_repo).removeprefix(ZOO))
    folder = Path(path_or_repo)
    if folder.exists():
        return folder
    if len(folder.parts) != 2 or folder.is_absolute():
        raise ValueError(f"path_or_repo: expected a folder or a hub id 'owner/name', got {str(path_or_repo)!r}")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(str(path_or_repo), allow_patterns=list(patterns)))


EMBEDDING = "embed_tokens.weight"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ROTATION = ("rope_parameters", "rope_scaling", "rope_theta")  # fields of rotary positions
PLAIN, ONE_AXIS = ("default",), ("default", "mrope")
SCALED = ("linear", "llama3", "yarn")  # scaled positions whose frequencies are the same at every length


def drafter_sizes(config: Mapping[str, Any], rotations: Collection[str] = PLAIN) -> dict[str, Any]:
    """Return the sizes in a published config, else the public classes' defaults; see `rotary_fields` for `rotations`."""
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    missing = [name for name in needed if name not in config]
    if missing:
        raise ValueError(f"config: expected the fields {', '.join(needed)}, got none for {', '.join(missing)}")
    if config.get("num_hidden_layers", 1) != 1:
        raise ValueError(
            f"config: expected a drafter of one layer, got num_hidden_layers {config['num_hidden_layers']}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"config: expected hidden_act 'silu', got {config['hidden_act']!r}")
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    return {
        **{name: config[name] for name in needed},
        "num_key_value_heads": 0 if groups == heads else groups,
        "head_dim": config.get("head_dim") or 0,
        "rope_theta": rotary_base(config, rotations),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "bias": config.get("bias", True),
        "qkv_bias": config.get("qkv_bias", False),
    }


def rotary_base(config: Mapping[str, Any], rotations: Collection[str] = PLAIN) -> float:
    return rotary_fields(config, rotations)["rope_theta"]


def rotary_fields(config: Mapping[str, Any], rotations: Collection[str]) -> dict[str, Any]:
    """Return `rope_theta`, the base, and `rope_scaling`, the fields of scaled positions or {}, of a Llama or Qwen
    config. They are in `rope_parameters`, `rope_scaling` (older files) or the config. Of `rotations`, the supported
    kinds, ONE_AXIS is for public code that gives all axes of M-RoPE the same position, so that its sections have no
    effect."""
    base, scaling = config.get("rope_theta"), {}
    partial = {"partial_rotary_factor": config.get("partial_rotary_factor")}
    for name in ("rope_scaling", "rope_parameters"):  # newer files have the second, which takes precedence
        rope = config.get(name) or {}
        if not isinstance(rope, Mapping):
            raise ValueError(f"{name}: expected fields of rotary positions or null, got {rope!r}; correct the config")
        if any(isinstance(value, Mapping) for value in rope.values()):
            raise ValueError(
                f"{name}: expected one kind of rotary positions, got those of {', '.join(map(str, rope))}; the "
                "drafter has one layer"
            )
        kind = "mrope" if "mrope_section" in rope else rope.get("rope_type", rope.get("type", "default"))
        if kind not in rotations:
            others = ", ".join(known for known in rotations if known in SCALED)
            raise ValueError(
                f"{name}: expected plain rotary positions{f' or {others}' if others else ''}, got {kind!r}; a "
                "drafter here would rotate positions differently than in its training"
            )
        partial[name] = rope.get("partial_rotary_factor")
        base = rope.get("rope_theta") or base
        if rope:
            scaling = _scaling(config, rope, kind) if kind in SCALED else {}
    if odd := {name: value for name, value in partial.items() if value not in (None, 1)}:
        raise ValueError(
            f"partial_rotary_factor: expected 1, since drafters rotate whole heads, got {odd}; use another drafter"
        )
    return {"rope_theta": float(base or 10000.0), "rope_scaling": scaling}


def _scaling(config: Mapping[str, Any], rope: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the fields of scaled positions, with the lengths that transformers reads from the rest of the config."""
    left_out = ("type", "rope_theta", "partial_rotary_factor")
    scaling = {name: value for name, value in rope.items() if name not in left_out and value is not None}
    longest = config.get("max_position_embeddings")
    if kind != "linear" and longest is not None:
        scaling.setdefault("original_max_position_embeddings", longest)
        scaling.setdefault("factor", longest / scaling["original_max_position_embeddings"])
    return {**scaling, "rope_type": kind}


def layer_names(prefix: str, qkv_bias: bool = False) -> dict[str, tuple[str, ...]]:
    """Map our names of a DraftLayer's weights to the published names that are stacked into each. `prefix` is that of
    the published layer, "layers.0." or "midlayer."."""
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    names = {
        "layer.qkv.weight": tuple(f"{attention}{x}_proj.weight" for x in "qkv"),
        "layer.out.weight": (f"{attention}o_proj.weight",),
        "layer.norm.weight": (f"{prefix}post_attention_layernorm.weight",),
        "layer.gate_up.weight": (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
        "layer.down.weight": (f"{mlp}down_proj.weight",),
    }
    if qkv_bias:
        names["layer.qkv.bias"] = tuple(f"{attention}{x}_proj.bias" for x in "qkv")
    return names


def fill_drafter(
    drafter: nn.Module,
    state: Mapping[str, Tensor],
    names: Mapping[str, tuple[str, ...]],
    unused: Iterable[str] = (EMBEDDING,),
) -> nn.Module:
    """Load published tensors into a drafter, converted to its dtypes. `names` maps our name to the published names
    whose rows are stacked into it; `unused` are ignored (the embedding is the target's). The error lists all misfits.
    """
    if odd := [name for name, value in state.items() if name.endswith("weight") and value.dtype not in _FLOATS]:
        raise ValueError(
            f"sd: expected floating-point weights of at least 16 bits, got {state[odd[0]].dtype} in {abbreviated(odd)}; "
            "fetch the drafter without quantisation"
        )
    wanted = [name for group in names.values() for name in group]
    missing = [name for name in wanted if name not in state]
    unknown = sorted(set(state) - set(wanted) - set(unused))
    if missing or unknown:
        raise ValueError(f"sd: expected the published keys; missing {missing}, unknown {unknown}")
    own = drafter.state_dict()
    filled, misfits = {}, []
    for name, group in names.items():
        rows, shape = [state[key] for key in group], own[name].shape
        fits = all(part.dim() == len(shape) and part.shape[1:] == shape[1:] for part in rows)
        if not fits or sum(map(len, rows)) != shape[0]:
            got = ", ".join(str(tuple(part.shape)) for part in rows)
            misfits.append(f"{' + '.join(group)}: expected shape {tuple(shape)} by the config, got {got}")
            continue
        filled[name] = (torch.cat(rows) if len(rows) > 1 else rows[0]).to(own[name].dtype)
    if misfits:
        raise ValueError("; ".join([*misfits, "give the config the file was made with"]))
    if named := non_finite({key: state[key] for key in wanted}):
        raise ValueError(f"sd: expected finite weights, got NaN or Inf in {abbreviated(named)}; fetch the file again")
    drafter.load_state_dict(filled)
    return drafter
