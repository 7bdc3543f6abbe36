"""The model of a config without weights: its class, its parts and its layers, without memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.check.report import LayerGroup
from mmspec.core.layers.layer_plan import LayerPlan
from mmspec.io.checkpoints import load_part
from mmspec.io.loading import sketch
from mmspec.vlm.architectures import Parts, parts_of, placeholders_of

BY_SIZE = "as many tokens as its size asks for"  # of pictures, where the config gives no number
_MOST_TENSORS = 100_000  # of the sketch of a config


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model on the meta device; `config` is that of transformers."""

    config: Any
    class_name: str
    model: nn.Module | None  # None where its class cannot be built from the config alone
    parts: Parts | None  # None where the class is refused
    refusal: str = ""


def read_config(place: Path) -> Any:
    """Return the config of transformers in a folder or a file."""
    from transformers import AutoConfig

    return load_part(AutoConfig, place)


def class_of(config: Any, source: str) -> type:
    """Return the class that writes text with a config: its own class if transformers has it."""
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    for mapping in (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
        if type(config) in mapping:
            known = mapping[type(config)]
            known = known if isinstance(known, tuple) else (known,)
            own = [kind for kind in known if kind.__name__ in (config.architectures or ())]
            return (own or known)[0]
    named = next(iter(config.architectures or ()), "")
    own = getattr(transformers, named, None) if named else None
    if own is not None and hasattr(own, "generate") and getattr(own, "can_generate", bool)():
        return own
    raise ValueError(
        f"{source}: expected a model that writes text or draws, got a {type(config).__name__}"
        f"{f' of {named}' if named else ''}, which does neither; use another"
    )


def sketch_model(config: Any, source: str) -> Skeleton:
    kind = class_of(config, source)
    model = sketch(lambda: kind(config), _MOST_TENSORS, source).eval()
    try:
        return Skeleton(config, kind.__name__, model, parts_of(model))
    except ValueError as error:
        return Skeleton(config, kind.__name__, model, None, str(error))
    except AttributeError as error:  # a config whose fields have other names
        return Skeleton(config, kind.__name__, model, None, f"expected the fields of a decoder, got none ({error})")


def layer_groups(plan: LayerPlan) -> list[LayerGroup]:
    """Return the layers of a plan by kind, in the order of their first layers."""
    counted = Counter((layer.kind, layer.width) for layer in plan.layers)
    return [LayerGroup(kind, count, width) for (kind, width), count in counted.items()]


def named_groups(config: Any) -> list[LayerGroup]:
    """Return the layers of a text config by their names in the config, for a refused class."""
    text = config.get_text_config(decoder=True)
    types = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if types is None:
        types = ["decoder"] * (getattr(text, "num_hidden_layers", None) or 0)
    return [LayerGroup(str(kind), count) for kind, count in Counter(types).items()]


def pictures_of(skeleton: Skeleton) -> str:
    """Return how pictures enter the model, and the tokens of a picture if the config has them; "" for text models."""
    config, parts = skeleton.config, skeleton.parts
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return ""
    if parts is not None and any(layer.kind == "cross" for layer in parts.plan.layers):
        count = sum(layer.kind == "cross" for layer in parts.plan.layers)
        return f"keys and values of {count} layers of cross attention; no tokens of the row"
    places = placeholders_of(config)
    where = f" in place of token {' or '.join(map(str, places))}" if places else ""
    deep = getattr(vision, "deepstack_visual_indexes", None)
    more = f", and added to the outputs of the first layers ({len(deep)})" if deep else ""
    count = None if parts is None else parts.tokens_per_image
    size = f"{count} tokens each" if count else BY_SIZE
    return f"{size}; vectors of the vision tower{where}{more}"
