from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text
from mmspec.core.pipeline_folder import SavedPipeline, smaller_pipeline
from mmspec.imagegen.base_pipeline import BasePipeline
from mmspec.imagegen.components import load_component, module_component
from mmspec.imagegen.continuous.kl import kl_component, kl_from_state_dict
from mmspec.imagegen.continuous.mar.adapter import Encode, MARModel
from mmspec.imagegen.continuous.mar.load import mar_from_state_dict
from mmspec.imagegen.continuous.mar.mar_config import SIZES
from mmspec.imagegen.continuous.mar.request import MARRequest
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.masked_target import MaskedTarget, Schedule, TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from mmspec.imagegen.llamagen.captions import captions_component

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


@dataclass(frozen=True, slots=True)
class _MARIndex:
    transformer: object = None
    guidance_scale: float | None = None
    guidance_schedule: str | None = None
    num_iter: int | None = None
    text_encoder: list | None = None
    tokenizer: object = None
    clean_captions: bool = True
    vae: list | None = None


class MARPipeline(SavedPipeline, BasePipeline):
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
    loaders: ClassVar[Mapping[str, Load]] = {"draft": smaller_pipeline}
    Index, settings = _MARIndex, ("guidance_scale", "guidance_schedule", "num_iter")
    components = (
        module_component("transformer", mar_from_state_dict, "MAR", "mar"),
        kl_component(lambda folder, *_: load_component(folder, kl_from_state_dict, "mar").float()),
        captions_component("buffer_size", needs_index=True),
    )

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
