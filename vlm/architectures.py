"""Which transformers models the target adapter takes, and where their parts are."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature

from torch import nn

PLACEHOLDERS = ("image_token_id", "video_token_id", "audio_token_id", "image_token_index", "video_token_index")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A supported class. inputs: what prompts may hold. tested: how the suite checks it."""

    name: str
    inputs: str
    tested: str


_TINY = "random tiny model, greedy fp32 against transformers.generate"

ARCHITECTURES = tuple(
    Architecture(name, inputs, _TINY)
    for name, inputs in (
        ("LlavaForConditionalGeneration", "text, images"),
        ("LlavaNextForConditionalGeneration", "text, images (any resolution)"),
        ("LlavaOnevisionForConditionalGeneration", "text, images, video frames"),
        ("Qwen2_5_VLForConditionalGeneration", "text, images, video frames"),
        ("Qwen3VLForConditionalGeneration", "text, images, video frames"),
        ("LlamaForCausalLM", "text"),
        ("Qwen2ForCausalLM", "text"),
        ("Qwen3ForCausalLM", "text"),
        ("MistralForCausalLM", "text"),
    )
)

_EVEN = ("LlavaForConditionalGeneration",)  # classes whose pictures all have as many tokens
_BY_NAME = {a.name: a for a in ARCHITECTURES}


@dataclass(frozen=True, slots=True)
class Parts:
    """A target taken apart.

    direct: logits are the head applied to the decoder's last hidden state, so verify passes skip the wrapper.
    placeholders: ids that stand for visual features in a prompt; a drafter must never propose them.
    tokens_per_image: placeholders of every picture where the class gives all pictures as many, else None.
    """

    model: nn.Module
    decoder: nn.Module
    head: nn.Module
    embed: nn.Module
    direct: bool
    layers: int
    hidden_size: int
    vocab_size: int
    placeholders: tuple[int, ...]
    tokens_per_image: int | None = None


def supported() -> tuple[Architecture, ...]:
    """The architectures the adapter takes by name; any other full-attention `*ForCausalLM` also works, untested."""
    return ARCHITECTURES


def take_apart(model: nn.Module) -> Parts:
    """The parts of a supported transformers model.

    Raises ValueError for a class, an attention pattern or an attention implementation that is not supported.
    """
    name = type(model).__name__
    if name not in _BY_NAME and not name.endswith("ForCausalLM"):
        raise ValueError(f"model: expected one of {', '.join(_BY_NAME)} or a decoder-only *ForCausalLM, got {name}")
    config = model.config.get_text_config(decoder=True)
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"model: expected a decoder-only model, got the encoder-decoder {name}")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds - {"full_attention"} or (windowed and not getattr(config, "layer_types", None)):
        raise ValueError(f"model: expected full attention in every layer, got {sorted(kinds)} with sliding_window="
                         f"{getattr(config, 'sliding_window', None)}; a tree of drafts needs the whole context")  # fmt: skip
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"attn_implementation: expected 'sdpa' or 'eager', got {attention!r}; load the model with 'sdpa'"
        )
    if "position_ids" not in signature(model.forward).parameters:
        raise ValueError(f"model: expected a forward that takes position_ids, got {name}; drafts on a tree need them")
    head = model.get_output_embeddings()
    return Parts(
        model=model,
        decoder=model.get_decoder(),
        head=head,
        embed=model.get_input_embeddings(),
        direct=name in _BY_NAME,
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=head.weight.shape[0],
        placeholders=placeholders_of(model.config),
        tokens_per_image=_tokens_per_image(model.config) if name in _EVEN else None,
    )


def _tokens_per_image(config: object) -> int | None:
    """Patches of a square tower, as its processor counts them: `image_seq_length` keeps its default in many configs."""
    vision = config.vision_config
    if vision.model_type not in ("clip_vision_model", "siglip_vision_model"):
        return None
    with_class = vision.model_type == "clip_vision_model"
    patches = (vision.image_size // vision.patch_size) ** 2
    return patches + with_class - (config.vision_feature_select_strategy == "default")


def placeholders_of(config: object) -> tuple[int, ...]:
    """Ids that stand for visual or audio features in prompts of a model with this config."""
    found = {getattr(config, name, None) for name in PLACEHOLDERS}
    return tuple(sorted(i for i in found if isinstance(i, int)))
