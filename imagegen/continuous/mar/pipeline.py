from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text, fitted_pipeline
from mmspec.imagegen.base_pipeline import BasePipeline
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.continuous.kl import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.adapter import Encode, MARModel
from mmspec.imagegen.continuous.mar.load import mar_from_state_dict
from mmspec.imagegen.continuous.mar.mar_config import SIZES
from mmspec.imagegen.continuous.mar.request import MARRequest
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.masked_target import MaskedTarget, Schedule, TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from mmspec.imagegen.llamagen.captions import CaptionEncoder, read_captions, write_captions
from mmspec.io.files import write_json_atomic
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import check_types

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


INDEX = "model_index.json"
SETTINGS = ("guidance_scale", "guidance_schedule", "num_iter")


@dataclass(frozen=True, slots=True)
class _MARIndex:
    """The fields of model_index.json besides class names."""

    vae: list | None = None
    text_encoder: list | None = None
    clean_captions: bool = True
    guidance_scale: float | None = None
    guidance_schedule: str | None = None
    num_iter: int | None = None


_FILES = ("*.json", "*.safetensors")


def _draft(weights: str, pipe: MARPipeline) -> MARPipeline:
    return fitted_pipeline(from_zoo(weights) or MARPipeline.from_pretrained(weights), MARPipeline, pipe)


class MARPipeline(BasePipeline):
    """A pipeline from class labels (-1 for no class), and captions where the model supports them, to images.

    Calls accept the fields of `MARRequest` and return tokens float32 [B, L, d]. A folder holds transformer/ and, where
    they exist, vae/, each as `convert` wrote it, text_encoder/ and tokenizer/ as transformers wrote them, and
    model_index.json.

    Args:
        vae: The autoencoder; None where only tokens are needed.
        captions: The caption encoder, see `MARModel`.
        guidance_scale: The default guidance scale of calls; None for that of the published evaluation at the published
            sizes, 1 otherwise.
        guidance_schedule: The default schedule of calls, that of the published evaluation.
        num_iter: The default number of passes of calls, that of the public sampler.

    Raises:
        ValueError: A default is out of range, or the vae belongs to another model.
    """

    Request = MARRequest
    loaders: ClassVar[Mapping[str, Load]] = {"draft": _draft}

    def __init__(
        self,
        transformer: MAR,
        vae: AutoencoderKL | None = None,
        captions: Encode | None = None,
        *,
        guidance_scale: float | None = None,
        guidance_schedule: Schedule = "linear",
        num_iter: int = 64,
    ):
        self.model = MARModel(transformer, vae, captions)
        width, depth = transformer.config.encoder_embed_dim, transformer.config.encoder_depth
        published = {size[:2]: size[-1] for size in SIZES.values()}
        self.guidance_scale = published.get((width, depth), 1.0) if guidance_scale is None else guidance_scale
        self.guidance_schedule, self.num_iter = guidance_schedule, num_iter
        TokenGuidance(self.guidance_scale, guidance_schedule)  # defaults are refused here, not in a later call
        cosine_steps(self.model.total, num_iter)

    def decoding(self, text: Any, num_sampling_steps: str | int | None = None) -> Any:
        """Return the decoding that a text such as "cspd:gamma=8@FOLDER" names; an object is returned unchanged.
        `num_sampling_steps` are the steps of the head that it is for; None for the model's own."""
        own = {"head": lambda: self.model.head(num_sampling_steps)}
        return decoding_from_text(text, self, "continuous", "masked", own)

    def tokens(self, target: MaskedTarget) -> Tensor:
        return target.values

    @property
    def image_size(self) -> int:
        """Pixels per side."""
        return self.model.transformer.config.img_size

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path, *, dtype: torch.dtype | None = None) -> Self:
        """Load the pipeline of a folder, or of a hub repository named by its id (the only case that uses the network).
        The dtype is the transformer's; the autoencoder runs in float32, as in the public sampler."""
        folder = folder_of(path_or_repo, _FILES)
        with naming(folder):
            indexed = (folder / INDEX).exists()
            index = read_json(folder / INDEX) if indexed else {}
            if (kind := index.get("_class_name", cls.__name__)) != cls.__name__:
                raise ValueError(f"{folder / INDEX}: expected a {cls.__name__}, got {kind!r}; check the folder")
            with naming(folder / INDEX):
                check_types(_MARIndex, index)
            transformer = load_component(folder / "transformer", mar_from_state_dict, "mar")
            vae = captions = None
            if index.get("vae") if indexed else (folder / "vae").is_dir():
                vae = load_component(folder / "vae", kl_from_state_dict, "mar").float()
            if index.get("text_encoder"):
                size, cleaned = transformer.config.buffer_size, index.get("clean_captions", True)
                captions = read_captions(folder, size, cleaned=cleaned)
            settings = {name: index[name] for name in SETTINGS if index.get(name) is not None}
            pipe = cls(transformer, vae, captions, **settings)
        return pipe if dtype is None else pipe.to(dtype=dtype)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pipeline; the index is written last."""
        folder, model = Path(folder), self.model
        index = {"_class_name": type(self).__name__, "transformer": ["mmspec", "MAR"]}
        index |= {name: getattr(self, name) for name in SETTINGS}
        if model.captions is not None:
            index |= write_captions(model.captions, folder)
        write_component(model.transformer, folder / "transformer")
        if model.vae is not None:
            write_kl(model.vae, folder / "vae")
            index["vae"] = ["diffusers", "AutoencoderKL"]
        write_json_atomic(folder / INDEX, index)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move all parts; `dtype` is for transformer and caption encoder, the autoencoder stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if self.model.vae is not None:
            self.model.vae.to(device=device)
        if isinstance(self.model.captions, CaptionEncoder):
            self.model.captions.encoder.to(device=device, dtype=dtype)
        return self
