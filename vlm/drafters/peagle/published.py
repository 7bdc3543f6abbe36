"""P-EAGLE drafters as `speculators` saves them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmspec.core.drafting.published import fill, layer_names
from mmspec.vlm.architectures import take_apart
from mmspec.vlm.drafters.eagle3 import levels_of
from mmspec.vlm.drafters.eagle3.published import check_vocabulary, fields_of, levels_in
from mmspec.vlm.drafters.peagle.drafter import PEagle, PEagleConfig


def load(state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> PEagle:
    """An EAGLE-3 file with more layers, `mask_hidden` and a trained embedding. Tokens of a draft: the first proposal method's
    `speculative_tokens`, 7 where the config has none.

    Raises ValueError as EAGLE-3's reader does, and for a config without `mask_token_id`.
    """
    inner = config.get("transformer_layer_config") or config
    layers, mask = inner.get("num_hidden_layers", 1), config.get("mask_token_id")
    if mask is None:
        raise ValueError("config: expected the field mask_token_id, got none; give the config the file was made with")
    one = dict(inner, num_hidden_layers=1)
    fields = fields_of(dict(config, transformer_layer_config=one) if inner is not config else one)
    if (levels := levels_in(config)) is None:
        if target is None:
            raise ValueError("config: expected eagle_aux_hidden_state_layer_ids or a target to take the usual levels of, "
                             "got neither; give the target")  # fmt: skip
        levels = levels_of(take_apart(target).layers)
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    drafter = PEagle(
        PEagleConfig(
            **fields, levels=tuple(levels), mask_token_id=mask, num_hidden_layers=layers,
            depths=methods[0].get("speculative_tokens") or 7,
        )
    )  # fmt: skip
    drafter = fill(drafter, state, _names(drafter), ("verifier_lm_head.weight", "verifier_norm.weight", "t2d", "d2t"))
    if drafter.head.reduced:
        check_vocabulary(state["d2t"], state["t2d"])
    return drafter


def _names(drafter: PEagle) -> dict[str, tuple[str, ...]]:
    names = {
        **layer_names("layers.0."),
        "embed_norm.weight": ("layers.0.input_layernorm.weight",),
        "state_norm.weight": ("layers.0.hidden_norm.weight",),
        "head.weight": ("lm_head.weight",),
    }
    names |= {name: (name,) for name in ("fc.weight", "norm.weight", "mask_hidden", "embed_tokens.weight")}
    if drafter.head.reduced:
        names |= {"head.d2t": ("d2t",), "head.t2d": ("t2d",)}
    for index in range(1, drafter.config.num_hidden_layers):
        prefix = f"layers.{index}."
        own = layer_names(prefix) | {"layer.input_norm.weight": (f"{prefix}input_layernorm.weight",)}
        names |= {f"rest.{index - 1}.{name.removeprefix('layer.')}": group for name, group in own.items()}
    return names
