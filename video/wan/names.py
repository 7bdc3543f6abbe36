"""Key names of Wan checkpoints: those of the causal models (Self-Forcing, Krea) and diffusers', one to one, both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

# a checkpoint's averaged weights come first: the published samples are theirs
WRAPPERS = ("generator_ema", "generator", "state_dict", "module")
_PREFIXES = ("model.", "diffusion_model.", "module.")
_WRAPPED = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")

# the causal models' name -> diffusers', without the last part, weight or bias
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
    **{f"self_attn.{one}": f"attn1.{other}" for one, other in _PARTS.items()},
    **{f"cross_attn.{one}": f"attn2.{other}" for one, other in _PARTS.items()},
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
}
# tables, whose names have no last part to keep
_TABLES = {"head.modulation": "scale_shift_table"}
_LAYER_TABLES = {"modulation": "scale_shift_table"}
_NUMBERED = re.compile(r"^(blocks\.\d+)\.(.+)$")


def unwrapped(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, from under "generator_ema" or "generator" if there are such, without the prefixes that
    wrapping leaves.   Raises ValueError when something in it is no tensor."""
    while wrapper := next((name for name in WRAPPERS if isinstance(state.get(name), Mapping)), None):
        state = state[wrapper]
    strange = sorted(str(name) for name, value in state.items() if not isinstance(value, Tensor))
    if strange or not state:
        raise ValueError(f"sd: expected tensors, or a mapping of them under one of {', '.join(WRAPPERS)}, got "
                         f"{strange[:4] or 'nothing'}; pass the state dict itself")  # fmt: skip
    return {_bare(name): value for name, value in state.items()}


def _bare(name: str) -> str:
    for part in _WRAPPED:
        name = name.replace(part, "")
    while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def is_causal(state: Mapping[str, Any]) -> bool:
    """Whether the names are those of the causal checkpoints."""
    return any(".self_attn." in name or name.startswith(("head.", "time_embedding.")) for name in state)


def to_diffusers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A causal checkpoint's tensors under diffusers' names; names it does not know pass unchanged."""
    return {_renamed(name, _TOP, _LAYER, _TABLES, _LAYER_TABLES): value for name, value in state.items()}


def to_causal(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' tensors under the causal checkpoints' names; names it does not know pass unchanged."""
    tables = [{new: old for old, new in table.items()} for table in (_TOP, _LAYER, _TABLES, _LAYER_TABLES)]
    return {_renamed(name, *tables): value for name, value in state.items()}


def _renamed(name: str, top: dict, layer: dict, tables: dict, layer_tables: dict) -> str:
    numbered = _NUMBERED.match(name)
    prefix, rest = (f"{numbered[1]}.", numbered[2]) if numbered else ("", name)
    whole, parts = (layer_tables, layer) if numbered else (tables, top)
    if rest in whole:
        return prefix + whole[rest]
    owner, _, last = rest.rpartition(".")
    return f"{prefix}{parts[owner]}.{last}" if owner in parts else name
