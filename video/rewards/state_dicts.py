"""Loading of published reward state dicts into modules, without a second copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.io.files import replacing
from mmspec.io.loading import mismatch, sketch, unpickle, unwrap_state, without_prefixes
from mmspec.io.readers import naming, read_tensors

Module = TypeVar("Module", bound=nn.Module)
_WRAPPERS, _PREFIXES = ("state_dict", "model", "module"), ("module.", "_orig_mod.")


def weights_of(sd: Mapping[str, Any] | str | Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, raw or wrapped, or of a .safetensors file, without prefixes of wrappers."""
    if not isinstance(sd, Mapping):
        if Path(sd).suffix != ".safetensors":
            raise ValueError(
                f"{sd}: expected a .safetensors file, got {Path(sd).suffix or 'no suffix'}; convert a pickle with "
                f"`mmspec convert {sd} OUT.safetensors --kind reward`"
            )
        sd = read_tensors(sd)
    return {without_prefixes(name, _PREFIXES): value for name, value in unwrap_state(sd, _WRAPPERS).items()}


def convert_reward(path: str | Path, out: str | Path) -> Path:
    """Write the weights of a pickled ImageReward or HPSv2 to a .safetensors file; code in the pickle is not run."""
    path, out = Path(path), Path(out)
    if out.suffix != ".safetensors":
        raise ValueError(
            f"{out}: expected a name that ends in .safetensors, got {out.suffix or 'no suffix'}; choose such a name"
        )
    with naming(path):
        weights = weights_of(unpickle(path))
    with replacing(out) as temporary:
        # safetensors refuses tensors that share memory
        save_file({name: value.clone().contiguous() for name, value in weights.items()}, temporary)
    return out


def named(sd: Mapping[str, Any] | str | Path) -> Any:
    return nullcontext() if isinstance(sd, Mapping) else naming(sd)


def filled(
    make: Callable[[], Module],
    weights: Mapping[str, Tensor],
    published: Callable[[str], str] = lambda name: name,
    kept: Collection[str] = (),
) -> Module:
    """Return the module with `weights`, frozen and in eval mode; weights of the same dtype are not copied. Weights in
    `kept` keep their dtype; the others are cast to the dtype of the first."""
    model = _drawn(make, len(weights))
    own = {published(name): (name, value) for name, value in model.state_dict().items()}
    if wrong := mismatch({name: value for name, (_, value) in own.items()}, weights):
        raise ValueError(
            f"sd: expected every published key in the shapes of the config, got {wrong}; pass the whole state "
            "dict and the config it was made with"
        )
    dtype = next((value.dtype for value in weights.values() if value.is_floating_point()), torch.float32)
    cast = {name: value if name in kept else value.to(dtype) for name, value in weights.items()}
    model.load_state_dict({own[name][0]: value.detach() for name, value in cast.items()}, assign=True)
    _rebuild_buffers(model, next(iter(weights.values())).device)
    return model.eval().requires_grad_(False)


def _drawn(make: Callable[[], Module], tensors: int) -> Module:
    try:
        return sketch(make, tensors, "config")
    except Exception as error:  # each library checks its configs in its own way
        if isinstance(error, ValueError) and str(error).startswith("config: expected"):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"config: expected sizes of such a model, got others ({reason:.300}); correct it") from error


def _rebuild_buffers(model: nn.Module, device: torch.device) -> None:
    """Fill the buffers that no state dict holds, which were built on the meta device."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                continue
            if name == "position_ids":
                filling = torch.arange(buffer.shape[-1], device=device).expand(buffer.shape)
            elif name == "attn_mask":
                filling = torch.full(buffer.shape, float("-inf"), device=device).triu_(1)
            else:
                raise ValueError(
                    f"config: expected a model whose buffers are known, got {name}; use the published config"
                )
            setattr(module, name, filling)
