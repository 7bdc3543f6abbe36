from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmspec.core.drafting.named_weights import Load
from mmspec.core.pipeline_folder import Component, SavedPipeline, smaller_pipeline
from mmspec.imagegen.components import load_component, module_component, write_component
from mmspec.imagegen.llamagen.adapter import Encode, LlamaGenModel
from mmspec.imagegen.llamagen.captions import captions_component
from mmspec.imagegen.llamagen.load import check_pair, llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.imagegen.pipeline import ImagePipeline

# (guidance_scale, top_k) of the public demos
_DEFAULTS = {"c2i": (4.0, 2000), "t2i": (7.5, 1000)}


@dataclass(frozen=True, slots=True)
class _LlamaGenIndex:
    transformer: object = None
    text_encoder: list | None = None
    tokenizer: object = None
    clean_captions: bool = True
    vq: list | None = None
    image_size: int | None = None
    guidance_scale: float | None = None
    top_k: int | None = None


def _read_vq(folder: Path, index: Mapping[str, Any], parts: Mapping[str, Any]) -> VQModel:
    vq = load_component(folder, vq_from_state_dict).float()
    check_pair(parts["transformer"].config, vq.config, index.get("image_size"))
    return vq


class LlamaGenPipeline(SavedPipeline, ImagePipeline):
    """A pipeline from class labels or captions to images or videos; call it as an `ImagePipeline`.

    A folder holds transformer/ and, where they exist, vq/, text_encoder/ and tokenizer/, each as `convert` or
    transformers wrote it. Without a model_index.json the defaults are those of the public demos.

    Args:
        vq: The image tokenizer, see `LlamaGenModel`.
        captions: The caption encoder, see `LlamaGenModel`.
        guidance_scale: The default guidance scale of calls; None for the public demos'.
        top_k: The default top-k of calls; None for the public demos'.
    """

    loaders: ClassVar[Mapping[str, Load]] = {**ImagePipeline.loaders, "low": smaller_pipeline}
    files = ("*.json", "*.safetensors", "*.txt", "*.model")
    Index, settings = _LlamaGenIndex, ("guidance_scale", "top_k")
    components = (
        module_component("transformer", llamagen_from_state_dict, "Transformer"),
        Component("vq", "model.vq", _read_vq, write_component, ("mmspec", "VQModel"), optional=True, keeps_dtype=True),
        captions_component("cls_token_num"),
    )

    def __init__(
        self,
        transformer: Transformer,
        vq: VQModel | None = None,
        captions: Encode | None = None,
        *,
        guidance_scale: float | None = None,
        top_k: int | None = None,
    ):
        super().__init__(LlamaGenModel(transformer, vq, captions))
        config = transformer.config
        scale, most = _DEFAULTS[config.model_type]
        if config.model_type == "c2i" and not config.null_class:  # there is no unconditional branch
            scale = 1.0
        self.guidance_scale = scale if guidance_scale is None else guidance_scale
        self.top_k = most if top_k is None else top_k

    @property
    def image_size(self) -> int | None:
        """Pixels per side of a frame; None without a tokenizer."""
        vq = self.model.vq
        return None if vq is None else self.model.geometry.rows * vq.config.downsample

    def _written_settings(self) -> dict[str, Any]:
        return {**super()._written_settings(), "image_size": self.image_size}
