"""Base of trained drafters: the description of a kind, and the sizes that follow from a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.io.pretrained import Pretrained
from mmspec.methods import MethodParts
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.hf_model import unwrapped


class PretrainedDrafter(Pretrained):
    """Base of trained drafters of text tokens. The class describes the files, sizes and training of its kind."""

    kinds: ClassVar[dict[str, type[Pretrained]]] = {}  # of imported modules; `drafter_classes` imports them all
    published_as: ClassVar[tuple[str, ...]] = ()  # "speculators:TYPE", "projector:TYPE", or in `architectures`
    in_target: ClassVar[bool] = False  # whether the weights lie in the target's own checkpoint
    trainable: ClassVar[bool] = False  # here; the others come from their publishers
    any_target: ClassVar[bool] = True  # the others belong to models of one family
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # more kinds to train, with their config fields
    writers: ClassVar[Mapping[str, str]] = {}  # by engine, "MODULE:FUNCTION", see `export_drafter`

    @classmethod
    def from_published(cls, state: dict[str, Tensor], config: dict[str, Any], target: nn.Module | None) -> Self:
        """Return the drafter of a published checkpoint, from tensors under published names and the config file's
        fields. Kinds without published files do not override this; `target` is None where it is not known."""
        raise NotImplementedError

    @classmethod
    def tensor_filter(cls, target: nn.Module | None) -> Callable[[str], bool]:
        """Return a predicate on tensor names: whether the tensor is read from a published file."""
        return lambda name: True

    @classmethod
    def sizes_for(cls, parts: Parts, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config fields that follow from a target and the user's `sizes`; `new` ignores unknown fields."""
        return layer_sizes(parts)

    @classmethod
    def new(cls, parts: Parts, sizes: Mapping[str, Any]) -> Self:
        """Return an untrained drafter, with weights from torch's generator; `sizes` replace fields of `sizes_for`."""
        known = {field.name for field in fields(cls.config_class)}
        if set(sizes) - known:
            raise ValueError(
                f"sizes: expected fields of {', '.join(sorted(known))}, got {', '.join(sorted(set(sizes) - known))}"
            )
        fields_of_target = {name: value for name, value in cls.sizes_for(parts, sizes).items() if name in known}
        return cls(cls.config_class(**fields_of_target | dict(sizes))).start_from(parts)

    def start_from(self, parts: Parts) -> Self:
        """Copy the target's weights, where the drafter starts training from them; return the drafter itself."""
        return self

    @classmethod
    def recipes(cls) -> dict[str, Any]:
        """Return the published recipes by name: those of the class's kinds and other recipes for them, see `Recipe`."""
        return {}

    def prescribed(self, recipe: Any) -> Any:
        """Return the recipe of all kinds with the settings that the method itself prescribes; see `equal_recipe`."""
        return recipe

    @classmethod
    def warm_start(cls, drafter: PretrainedDrafter) -> PretrainedDrafter:
        """Return the drafter that training starts from when the user passes `drafter`; by default `drafter` itself."""
        return drafter

    def save_for(self, target: nn.Module, folder: str | Path, dtype: object) -> None:
        """Write the drafter into a folder that `load_drafter` reads with this target, see `save_pretrained`."""
        self.save_pretrained(folder, dtype=dtype)

    @classmethod
    def method_facts(cls) -> dict[str, Any]:
        """Return the class's facts for the registry, beside its settings, so that kinds need no import."""
        own = vars(cls)
        kind = getattr(cls, "kind", "")
        facts = {
            "saved": kind,
            "trained": [kind, *own.get("variants", ())] if cls.trainable else [],
            "published": cls.from_published.__func__ is not PretrainedDrafter.from_published.__func__,
            "published_as": list(own.get("published_as", ())),
            "in_target": own.get("in_target", False),
            "engines": sorted(cls.writers),
            "steps": list(getattr(cls, "steps", ())),
        }
        return {name: value for name, value in facts.items() if value}

    def check(self, parts: Parts) -> None:
        """Refuse a target that the drafter was not created for."""
        raise NotImplementedError

    def fitted(self, target: nn.Module) -> Self:
        """Return the drafter, checked against a model (with adapters or without), on its device and in its dtype."""
        parts = take_apart(unwrapped(target))
        self.check(parts)
        return self.to(device=parts.device, dtype=parts.dtype)


def weights_of(cls: type[PretrainedDrafter], parts: MethodParts) -> Any:
    """Return the available weights, which have to be of the class."""
    weights = parts.part("weights")
    if not isinstance(weights, cls):
        kind = getattr(cls, "kind", cls.name)
        raise ValueError(f"weights: expected weights of a drafter of kind {kind}, got {type(weights).__name__}")
    return weights


def layer_sizes(parts: Parts) -> dict[str, Any]:
    """Return the sizes of a target's decoder layers, under the field names of drafter configs."""
    config = parts.model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or 0
    layers = getattr(parts.decoder, "layers", None) or (None,)
    attention = getattr(layers[0], "self_attn", None)  # None in layers without attention
    return {
        "hidden_size": parts.hidden_size,
        "vocab_size": parts.vocab_size,
        "intermediate_size": _inner_width(config) or 4 * parts.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": 0 if dim * heads == parts.hidden_size else dim,
        "rope_theta": float(rope.get("rope_theta", 10000.0)),
        "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "qkv_bias": getattr(getattr(attention, "q_proj", None), "bias", None) is not None,
    }


def _inner_width(config: Any) -> int:
    """Return the width inside the MLP of a target's first layer; 0 where its config has no such field."""
    values = (getattr(config, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner"))
    widths = (value[0] if isinstance(value, list | tuple) and value else value for value in values)
    return next((width for width in widths if isinstance(width, int) and width > 0), 0)


def require_fields(config: Mapping[str, object], *needed: str) -> list:
    """Return the `needed` fields of a published config; the error lists all that are missing."""
    if missing := [name for name in needed if name not in config]:
        raise ValueError(f"config: expected the fields {', '.join(needed)}, got none for {', '.join(missing)}")
    return [config[name] for name in needed]
