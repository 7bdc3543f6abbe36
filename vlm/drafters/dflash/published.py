"""DFlash drafters as z-lab publishes them, as `speculators` saves them for vLLM, and transformers' Muse Glimmer assistant."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill
from mmspec.vlm.drafters.context_config import ContextConfig
from mmspec.vlm.drafters.context_files import context_fields, published_names, tensor_names, unused
from mmspec.vlm.drafters.dflash import DFlash


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> DFlash:
    """Which layers are read: `target_layer_ids` count layers whose output is read; `aux_hidden_state_layer_ids` of
    `speculators` are larger by one.

    What block rows see, by the config. z-lab: all, in full layers; in sliding ones fewer than W tokens back and none behind
    them, unless `is_causal`, or else `dflash_config.causal`, says for all layers. `speculators`: full layers alike, sliding
    ones W tokens back from the root for every row, and none behind them unless `sliding_window_non_causal`. Muse Glimmer's
    assistant: W tokens to both sides.
    Raises ValueError also for scaled or partial rotary positions, biases, and a field that stands twice with two values.
    """
    state = published_names(state)
    drafter = DFlash(ContextConfig(**context_fields(state, config, target)))
    reduced = bool(drafter.config.draft_vocab_size)
    names = tensor_names(state, drafter.config.num_hidden_layers, reduced)
    return fill(drafter, state, names, unused(state, reduced))
