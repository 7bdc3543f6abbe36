"""DFlash2 drafters as z-lab publishes them and as `speculators` saves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.context_files import context_fields, one_of, published_names, tensor_names, unused
from mmspec.vlm.drafters.dflash2.drafter import DFlash2, DFlash2Config

_FIELDS = {"conv_taps": "conv_kernel_size", "conv_group": "conv_group_size", "selector_rank": "selector_rank",
           "selector_top": "selector_top_k"}  # fmt: skip
_SELECTOR = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")
_CONV = ("base_kernel", "kernel_projection.weight")


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> DFlash2:
    """The convolutions' and the selector's sizes stand in `dflash_config`, or at the top. What rows see is read as for
    DFlash; `speculators` shows rows of sliding layers all of the block unless `sliding_window_non_causal` is false."""
    state, own = published_names(state), config.get("dflash_config") or {}
    if "transformer_layer_config" in config:
        config = {"sliding_window_non_causal": True} | config
    sizes = {name: one_of(config, own, theirs) for name, theirs in _FIELDS.items()}
    drafter = DFlash2(DFlash2Config(**context_fields(state, config, target), **sizes))
    return fill(drafter, state, _names(drafter, state), unused(state, False))


def _names(drafter: DFlash2, state: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    layers = drafter.config.num_hidden_layers
    same = [f"candidate_selector.{name}" for name in _SELECTOR]
    same += [f"layers.{n}.{side}_conv.{name}" for n in range(layers) for side in ("attention", "mlp") for name in _CONV]
    return tensor_names(state, layers, False) | {name: (name,) for name in same}
