"""Untrained drafters of every kind, in the sizes of the target they are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter


def new_drafter(kind: str, model: nn.Module, **sizes: Any) -> ShapedDrafter:
    """A drafter of `kind` for the target `model`, with random weights from torch's generator, on the target's device.

    kind: one of KINDS.   sizes: fields of the kind's config that replace what follows from the target: its widths, heads,
    key-value heads, rotary base and norm epsilon, and biases of queries, keys and values where it has them. Every kind takes
    the target's rotary base; the public code of EAGLE and FLASH trains with 10000 whatever the target has.
    Heads of their own (EAGLE-3, Medusa, Hydra) start from the target's. Hydra's prefix layer has the published final norm.
    Raises ValueError for an unknown kind, an unknown field, sizes that do not fit together, and an unsupported target.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    parts = take_apart(model)
    return KINDS[kind](parts, sizes).to(parts.device)


def layer_sizes(parts: Parts) -> dict[str, Any]:
    """The fields a FeatureConfig takes from a target."""
    config = parts.model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or 0
    attention = getattr(parts.decoder.layers[0], "self_attn", None)  # none in a layer of another kind
    return {
        "hidden_size": parts.hidden_size,
        "vocab_size": parts.vocab_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": 0 if dim * heads == parts.hidden_size else dim,
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "qkv_bias": getattr(getattr(attention, "q_proj", None), "bias", None) is not None,
    }


def _make(drafter: type, given: dict[str, Any], sizes: dict[str, Any]) -> ShapedDrafter:
    known = {field.name for field in fields(drafter.config_class)}
    if set(sizes) - known:
        raise ValueError(
            f"sizes: expected fields of {', '.join(sorted(known))}, got {', '.join(sorted(set(sizes) - known))}"
        )
    return drafter(drafter.config_class(**{name: value for name, value in given.items() if name in known} | sizes))


def _eagle(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle import Eagle

    return _make(Eagle, layer_sizes(parts), sizes)


def _eagle_text(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    return _eagle(parts, {"pictures": "left_out"} | sizes)


def _msd(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.msd import Msd

    # its drafter for Qwen2-VL is one of the target's own layers, norm included
    norm = parts.model.config.model_type.startswith("qwen")
    return _make(Msd, layer_sizes(parts) | {"input_norm": norm}, sizes)


def _vispec(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.vispec import ViSpec

    # no grouped queries, also where the target has them
    return _make(ViSpec, layer_sizes(parts) | {"num_key_value_heads": 0}, sizes)


def _flash(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.flash.drafter import Flash

    given = layer_sizes(parts)
    if sizes.get("head", "sar") == "sar":
        given |= {"intermediate_size": 4 * parts.hidden_size, "num_key_value_heads": 0}
    else:
        given |= {"block": 1}
    return _make(Flash, given, sizes)


def _specvlm(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.specvlm import SpecVlm

    return _make(SpecVlm, layer_sizes(parts), sizes)


def _eagle3(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.eagle3 import Eagle3, levels_of

    return _make(Eagle3, layer_sizes(parts) | {"levels": levels_of(parts.layers)}, sizes).start_from(parts)


def _medusa(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.medusa import Medusa

    return _adopting(Medusa, parts, sizes)


def _hydra(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.hydra import Hydra

    return _adopting(Hydra, parts, {"final_norm": bool(sizes.get("prefix_layer"))} | sizes)


def _dflash(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.dflash import DFlash

    return _block(DFlash, parts, sizes)


def _dspark(parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    from mmspec.vlm.drafters.dspark import DSpark

    return _block(DSpark, parts, {"from_root": True} | sizes)


def _block(drafter: type, parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    """One that reads levels spread over the target's depth."""
    from mmspec.vlm.drafters.dflash import taps_of

    layers, rows = sizes.get("num_hidden_layers", 5), parts.embed.weight.shape[0]
    unseen = set(range(max(rows - len(parts.placeholders) - 1, 0), rows)) - set(parts.placeholders)
    given = layer_sizes(parts) | {
        "num_hidden_layers": layers,
        "taps": taps_of(parts.layers, layers),
        "mask_token_id": max(unseen),  # the last row that stands for no picture
    }
    return _make(drafter, given, sizes).start_from(parts)


def _adopting(drafter: type, parts: Parts, sizes: dict[str, Any]) -> ShapedDrafter:
    """Heads whose vocabulary-wide maps start from the target's."""
    made = _make(drafter, layer_sizes(parts), sizes)
    made.adopt(parts)
    return made


KINDS: dict[str, Callable[[Parts, dict[str, Any]], ShapedDrafter]] = {
    "eagle2": _eagle,
    "eagle2_text": _eagle_text,
    "msd": _msd,
    "vispec": _vispec,
    "flash": _flash,
    "specvlm": _specvlm,
    "eagle3": _eagle3,
    "medusa": _medusa,
    "hydra": _hydra,
    "dflash": _dflash,
    "dspark": _dspark,
}
