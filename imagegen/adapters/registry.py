from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from mmspec.imagegen.adapters.chameleon import Chameleon
from mmspec.imagegen.adapters.decoder_model import DecoderModel
from mmspec.imagegen.adapters.emu3 import Emu3
from mmspec.imagegen.adapters.glm_image import GlmImage
from mmspec.imagegen.adapters.janus import Janus
from mmspec.imagegen.pipeline import ImagePipeline


@dataclass(frozen=True, slots=True)
class AdapterFamily:
    """A supported class of transformers, with the defaults of its published sampler."""

    name: str
    adapter: Callable[..., DecoderModel]
    guidance_scale: float
    top_k: int
    sized: bool  # whether the user chooses the size
    pixels: bool
    tested: str  # how the adapter is tested


_PROOF = "random tiny model, greedy fp32 against its own generation loop"

FAMILIES = (
    AdapterFamily("JanusForConditionalGeneration", Janus, 5.0, 0, False, True, _PROOF),
    AdapterFamily("Emu3ForConditionalGeneration", Emu3, 3.0, 2048, True, True, _PROOF),
    AdapterFamily("Emu3ForCausalLM", Emu3, 3.0, 2048, True, False, _PROOF),
    AdapterFamily(
        "ChameleonForConditionalGeneration", Chameleon, 3.0, 2000, False, False,
        "random tiny model, greedy fp32 against an uncached loop (transformers has none for images)",
    ),
    AdapterFamily("GlmImageForConditionalGeneration", GlmImage, 1.0, 0, True, False, _PROOF),
)  # fmt: skip


class AdapterPipeline(ImagePipeline):
    def __init__(self, model: DecoderModel, guidance_scale: float, top_k: int):
        super().__init__(model)
        self.guidance_scale, self.top_k = guidance_scale, top_k

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        self.model.to(device, dtype)
        return self


def supported() -> tuple[AdapterFamily, ...]:
    return FAMILIES


def pipeline_for(
    model: nn.Module, processor: object = None, *, size: tuple[int, int] | None = None, **options: object
) -> AdapterPipeline:
    """Return a pipeline over an image model of transformers, with the defaults of its published sampler.

    Args:
        model: Janus, Emu3, Chameleon/Anole or GLM-Image as transformers loads it.
        processor: Its processor, for prompts that are texts. Token ids need none, except for `Emu3ForCausalLM`, whose
            tokenizer names the image tokens.
        size: (height, width) in pixels where the model supports several; None for the published size.
        options: Further arguments of the adapter: `negative` for Emu3, `preview` for GLM-Image.

    Raises:
        ValueError: The class is another, or the model does not support the size.
    """
    family = _family_of(type(model))
    if family is None:
        raise ValueError(
            f"model: expected one of {', '.join(family.name for family in FAMILIES)} of transformers, got "
            f"{type(model).__name__} of {type(model).__module__}"
        )
    if size is not None:
        if not family.sized:
            raise ValueError(f"size: expected None, since {family.name} has a fixed size, got {size}; leave size out")
        options["size"] = size
    return AdapterPipeline(family.adapter(model, processor, **options), family.guidance_scale, family.top_k)


def _family_of(kind: type) -> AdapterFamily | None:
    """Return the family of a class of transformers or of its subclass; other code of the same name does not count."""
    names = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("transformers.")}
    return next((family for family in FAMILIES if family.name in names), None)
