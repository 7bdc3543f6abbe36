from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from mmspec.core.drafting.named_weights import Load, fitted_pipeline
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.llamagen.adapter import Encode, LlamaGenModel
from mmspec.imagegen.llamagen.captions import CaptionEncoder, read_captions, write_captions
from mmspec.imagegen.llamagen.load import check_pair, llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.io.files import write_json_atomic
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import check_types

INDEX = "model_index.json"
# (guidance_scale, top_k) of the public demos
_DEFAULTS = {"c2i": (4.0, 2000), "t2i": (7.5, 1000)}
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")


@dataclass(frozen=True, slots=True)
class _LlamaGenIndex:
    """The fields of model_index.json besides class names."""

    vq: list | None = None
    text_encoder: list | None = None
    clean_captions: bool = True
    image_size: int | None = None
    guidance_scale: float | None = None
    top_k: int | None = None


def _low(weights: str, pipe: LlamaGenPipeline) -> LlamaGenPipeline:
    return fitted_pipeline(from_zoo(weights) or LlamaGenPipeline.from_pretrained(weights), LlamaGenPipeline, pipe)


class LlamaGenPipeline(ImagePipeline):
    """A pipeline from class labels or captions to images or videos; call it as an `ImagePipeline`.

    A folder holds transformer/ and, where they exist, vq/, text_encoder/ and tokenizer/, each as `convert` or
    transformers wrote it. Without a model_index.json the defaults are those of the public demos.

    Args:
        vq: The image tokenizer, see `LlamaGenModel`.
        captions: The caption encoder, see `LlamaGenModel`.
        guidance_scale: The default guidance scale of calls; None for the public demos'.
        top_k: The default top-k of calls; None for the public demos'.
    """

    loaders: ClassVar[Mapping[str, Load]] = {**ImagePipeline.loaders, "low": _low}

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

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path, *, dtype: torch.dtype | None = None) -> Self:
        """Load the pipeline of a folder, or of a hub repository named by its id (the only case that uses the network).
        Without a model_index.json, every part that has a folder is loaded. The dtype is that of transformer and caption
        encoder, None for the files'. The tokenizer runs in float32, as in the public sampler."""
        folder = folder_of(path_or_repo, _FILES)
        with naming(folder):
            pipe = cls._read(folder)
        return pipe if dtype is None else pipe.to(dtype=dtype)

    @classmethod
    def _read(cls, folder: Path) -> Self:
        indexed = (folder / INDEX).exists()
        index = read_json(folder / INDEX) if indexed else {}
        kind = index.get("_class_name", cls.__name__)
        if kind != cls.__name__:
            raise ValueError(f"{folder / INDEX}: expected a {cls.__name__}, got {kind!r}; check the folder")
        with naming(folder / INDEX):
            check_types(_LlamaGenIndex, index)
        transformer = load_component(folder / "transformer", llamagen_from_state_dict)
        vq = captions = None
        if index.get("vq") if indexed else (folder / "vq").is_dir():
            vq = load_component(folder / "vq", vq_from_state_dict).float()
            check_pair(transformer.config, vq.config, index.get("image_size"))
        if index.get("text_encoder") if indexed else (folder / "text_encoder").is_dir():
            length, cleaned = transformer.config.cls_token_num, index.get("clean_captions", True)
            captions = read_captions(folder, length, cleaned=cleaned)
        return cls(transformer, vq, captions, guidance_scale=index.get("guidance_scale"), top_k=index.get("top_k"))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pipeline; the index is written last."""
        folder, model = Path(folder), self.model
        index: dict[str, Any] = {"_class_name": type(self).__name__, "transformer": ["mmspec", "Transformer"]}
        if model.captions is not None:
            index |= write_captions(model.captions, folder)
        write_component(model.transformer, folder / "transformer")
        if model.vq is not None:
            write_component(model.vq, folder / "vq")
            index["vq"] = ["mmspec", "VQModel"]
        index |= {"image_size": self.image_size, "guidance_scale": self.guidance_scale, "top_k": self.top_k}
        write_json_atomic(folder / INDEX, index)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move all parts; `dtype` is for transformer and caption encoder, the tokenizer stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if self.model.vq is not None:
            self.model.vq.to(device=device)
        if isinstance(self.model.captions, CaptionEncoder):
            self.model.captions.encoder.to(device=device, dtype=dtype)
        return self
