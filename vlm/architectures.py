"""The supported transformers models, and the lookup of their parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from mmspec.core.layers.layer_plan import LayerPlan, layer_plan
from mmspec.core.layers.rope import length_dependent
from mmspec.core.round.user_code import code_mark, global_mark, user_code
from mmspec.vlm.distributed import execution_device, group_of, hook_device, layer_devices, on_input_device
from mmspec.vlm.hf_model import check_layers, uncompiled
from mmspec.vlm.mixers import Mixer, mixers_of

PLACEHOLDERS = ("image_token_id", "video_token_id", "audio_token_id", "image_token_index", "video_token_index")


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str  # of the class
    inputs: str  # the supported kinds of prompt input
    tested: str  # how the test suite checks the class


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

# decoders that the test suite checks, with or without a wrapper
_DECODERS = ("LlamaModel", "Qwen2Model", "Qwen3Model", "MistralModel", "Qwen2_5_VLTextModel", "Qwen3VLTextModel")
_EVEN = ("LlavaForConditionalGeneration",)  # classes with the same number of tokens for every picture
_BY_NAME = {a.name: a for a in ARCHITECTURES}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a target model, see `parts_of`. `direct` says that the head's output on the last hidden states is
    the logits, so passes skip the wrapper; with users' code on the model, passes run all that the wrapper runs."""

    model: nn.Module
    decoder: nn.Module
    head: nn.Module
    embed: nn.Module
    direct: bool
    plan: LayerPlan
    places: tuple[torch.device | None, ...]  # per layer, see `layer_devices`
    hidden_size: int
    vocab_size: int
    placeholders: tuple[int, ...]  # ids of visual features in a prompt; a drafter must never propose them
    tokens_per_image: int | None = None  # placeholders of every picture; None if it varies
    trusted: bool = True  # whether the test suite checks this class with this decoder; others are tried first
    code: tuple[str, ...] = ()  # users' code on modules of text passes, see `mmspec.core.round.user_code`; tried first
    last_only: bool = True  # whether the forward can return the last logits alone
    own: bool = True  # whether the decoder is of transformers, whose windows equal those of its masks
    mixers: tuple[Mixer, ...] = ()  # the layers with states
    rotary: tuple[nn.Module, ...] = ()  # modules whose frequencies depend on the length
    most_positions: int | None = None  # as the config states; None without such a number
    learned_positions: int | None = None  # rows of the learned position table; None for computed positions

    @property
    def layers(self) -> int:
        return len(self.plan)

    @property
    def device(self) -> torch.device:
        return execution_device(self.embed)

    @property
    def dtype(self) -> torch.dtype:
        """Of the embedded tokens, as `device` is."""
        return self.embed.weight.dtype

    @property
    def like(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)

    @property
    def group(self) -> Any:
        """The processes that share the layers, None for a single process."""
        return group_of(self.model)


def supported() -> tuple[Architecture, ...]:
    """Return the architectures that the test suite checks; others need a passed trial, see `mmspec.vlm.admission`."""
    return ARCHITECTURES


# per model: the state of its modules and its config at the lookup, and the parts as weak references
_REMEMBERED: WeakKeyDictionary[nn.Module, tuple[tuple, dict, Parts]] = WeakKeyDictionary()


def parts_of(model: nn.Module) -> Parts:
    """Return the parts of a transformers model without wrappers that continues text. They are remembered until a
    module, a weight's shape or device, code on a module or the config changes."""
    methods = [getattr(model, name, None) for name in ("get_decoder", "generate")]
    if not (isinstance(model, nn.Module) and all(map(callable, methods))):
        raise ValueError(f"model: expected a transformers model that generates text, got {type(model).__name__}")
    modules, settings = _module_states(model), _settings(getattr(model, "config", None))
    known = _REMEMBERED.get(model)
    if known is None or known[:2] != (modules, settings):
        known = _REMEMBERED[model] = modules, copy.deepcopy(settings), _with_modules(_look_up(model), ref)
    parts = _with_modules(known[2], lambda module: module())
    return replace(parts, head=on_input_device(parts.head), embed=on_input_device(parts.embed))


def _module_states(model: nn.Module) -> tuple:
    """Return all in a model's modules on which its parts depend, modules as weak references."""
    states, waiting, known = [global_mark()], [model], set()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in known:
            continue
        known.add(id(module))
        own = vars(module)
        weight = next(iter(own["_parameters"].values()), None)
        states.append(
            (
                ref(module),
                type(module),
                module.training and bool(own.get("gradient_checkpointing")),
                "_hf_hook" in own and (hook_device(module),),
                None if weight is None else (weight.shape, weight.device),
                code_mark(module),
            )
        )
        waiting.extend(own["_modules"].values())
    return tuple(states)


def _settings(config: object) -> dict[str, object]:
    fields = vars(config).items() if isinstance(config, PreTrainedConfig) else ()
    return {name: _settings(value) if isinstance(value, PreTrainedConfig) else value for name, value in fields}


def _with_modules(parts: Parts, change: Callable) -> Parts:
    named = {name: change(getattr(parts, name)) for name in ("model", "decoder", "head", "embed")}
    mixers = tuple(replace(mixer, module=change(mixer.module)) for mixer in parts.mixers)
    return replace(parts, **named, mixers=mixers, rotary=tuple(map(change, parts.rotary)))


def _look_up(model: nn.Module) -> Parts:
    name, config = type(model).__name__, getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"model: expected a decoder-only model, got the encoder-decoder {name}")
    text = config.get_text_config(decoder=True)
    plan = layer_plan(text)
    attention = config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"attn_implementation: expected 'sdpa' or 'eager', got {attention!r}; load the model with 'sdpa'"
        )
    if not any("position_ids" in signature(forward).parameters for forward in (model.forward, type(model).forward)):
        raise ValueError(f"model: expected a forward that takes position_ids, got {name}; drafts on a tree need them")
    head, decoder, embed = _modules(model)
    check_layers(decoder, head)
    tested = name in _BY_NAME and _of_transformers(model)
    code = tuple(map(str, user_code(model, decoder, head, embed)))
    most = getattr(text, "max_position_embeddings", None)
    most = most if isinstance(most, int) and most > 0 else None
    return Parts(
        model=model,
        decoder=decoder,
        head=head,
        embed=embed,
        direct=tested and not code,
        plan=plan,
        places=layer_devices(decoder, len(plan)),
        hidden_size=text.hidden_size,
        vocab_size=head.weight.shape[0] if hasattr(head, "weight") else text.vocab_size,
        placeholders=placeholders_of(config),
        tokens_per_image=_tokens_per_image(model, config) if name in _EVEN else None,
        trusted=tested and type(decoder).__name__ in _DECODERS and _of_transformers(decoder),
        code=code,
        last_only=_takes(model, "logits_to_keep"),
        own=_of_transformers(decoder),
        mixers=mixers_of(decoder, plan),
        rotary=tuple(length_dependent(decoder)),
        most_positions=most,
        learned_positions=most if most is not None and _has_table(decoder, embed, most) else None,
    )


def _has_table(decoder: nn.Module, embed: nn.Module, most: int) -> bool:
    """Return whether the decoder has a table of `most` positions; OPT's begins with a few unused rows."""
    tables = (part for part in decoder.modules() if isinstance(part, nn.Embedding) and part.weight is not embed.weight)
    return any(most <= table.num_embeddings < most + 16 for table in tables)


def _modules(model: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Return the output head, the decoder and the token embeddings."""
    inner = uncompiled(getattr(model, "language_model", model))  # some wrappers expose their text model only
    try:
        decoder, embed = uncompiled(model.get_decoder()), uncompiled(model.get_input_embeddings())
        head = model.get_output_embeddings()
        head = uncompiled(inner.get_output_embeddings() if head is None else head)
        decoder = uncompiled(inner.get_decoder()) if decoder is inner or decoder is model else decoder
    except (AttributeError, NotImplementedError):
        head = decoder = embed = None
    if not isinstance(decoder, nn.Module) or not isinstance(head, nn.Module) or not hasattr(embed, "weight"):
        lacking = (
            f"with a {type(embed).__name__} that has no weight"
            if isinstance(embed, nn.Module)
            else "without one of them"
        )
        raise ValueError(
            "model: expected a decoder, token embeddings and an output head, got a "
            f"{type(model).__name__} {lacking}; decode it with model.generate"
        )
    return head, _below_head(decoder, head, embed), embed


def _below_head(decoder: nn.Module, head: nn.Module, embed: nn.Module) -> nn.Module:
    """Return the module with hidden states as output, in a decoder that contains the head (Llama 4, Kosmos-2)."""
    while any(child is head for child in decoder.children()):
        inner = [c for c in decoder.children() if c is not head and any(part is embed for part in c.modules())]
        if len(inner) != 1 or inner[0] is embed:
            return decoder
        decoder = inner[0]
    return decoder


def _takes(model: nn.Module, argument: str) -> bool:
    """Return whether the model's forward accepts the argument; of a replaced forward, `generate` reads the names alone."""
    parameters = signature(model.forward).parameters
    passed_on = "forward" not in vars(model) and any(v.kind is v.VAR_KEYWORD for v in parameters.values())
    return argument in parameters or passed_on


def _of_transformers(module: nn.Module) -> bool:
    """Return whether the class is part of transformers; other code may use the name of a tested class."""
    return type(module).__module__.startswith("transformers.models.")


def _tokens_per_image(model: nn.Module, config: object) -> int | None:
    """Return the tokens of a picture, from the projector or, as processors count them, from the vision tower's patches."""
    projector = getattr(model.base_model, "multi_modal_projector", None)
    if isinstance(stated := getattr(projector, "tokens_per_image", None), int):
        return stated
    vision = config.vision_config
    if vision.model_type not in ("clip_vision_model", "siglip_vision_model"):
        return None
    with_class = vision.model_type == "clip_vision_model"
    patches = (vision.image_size // vision.patch_size) ** 2
    return patches + with_class - (config.vision_feature_select_strategy == "default")


def placeholders_of(config: object) -> tuple[int, ...]:
    """Return the ids that stand for visual or audio features in the prompts of a model with this config."""
    ids = {getattr(config, name, None) for name in PLACEHOLDERS}
    return tuple(sorted(i for i in ids if isinstance(i, int)))
