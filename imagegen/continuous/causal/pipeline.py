from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text
from mmspec.core.pipeline_folder import SavedPipeline, smaller_pipeline
from mmspec.core.round.loop import Drafter
from mmspec.imagegen.base_pipeline import BasePipeline
from mmspec.imagegen.components import load_component, module_component
from mmspec.imagegen.conditioning import class_labels
from mmspec.imagegen.continuous.causal.target import CausalTarget
from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling, KeyedNoise, Noise
from mmspec.imagegen.continuous.kl import kl_component, kl_from_state_dict
from mmspec.imagegen.continuous.mar.adapter import NO_CLASS, NO_PIXELS, decode_tokens
from mmspec.imagegen.request import AUTO, PipelineRequest, raster_decoding
from mmspec.io.loading import fill_from_state_dict, sketch
from mmspec.io.validation import LARGEST_SCALE, number
from mmspec.methods import Domain

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


@dataclass(frozen=True, slots=True)
class _CausalIndex:
    guidance_scale: float = 1.0
    vae: list | None = None


class CausalModel:
    """The transformer and its autoencoder, None where only tokens are needed. A token is a cell of the latent."""

    def __init__(self, transformer: CausalTransformer, vae: AutoencoderKL | None = None):
        if vae is not None and vae.config.latent_channels != transformer.config.token_dim:
            raise ValueError(
                f"vae: expected {transformer.config.token_dim} channels, got {vae.config.latent_channels}; use "
                "the autoencoder the transformer was trained with"
            )
        self.transformer, self.vae = transformer, vae

    @property
    def device(self) -> torch.device:
        return self.transformer.position.device

    @property
    def no_pixels(self) -> str | None:
        return None if self.vae is not None else NO_PIXELS

    def prepare(self, prompts: object) -> Tensor:
        """Convert a label or several labels 0..class_num - 1, or -1 for no class, to a condition."""
        return class_labels(prompts, self.transformer.config.class_num, NO_CLASS).to(self.device)

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        return decode_tokens(self.vae, tokens, 1, self.transformer.config.grid)


@dataclass(frozen=True, kw_only=True)
class CausalRequest(PipelineRequest):
    """The settings of a request to a `ContinuousARPipeline`.

    Args:
        decoding: A drafter such as `SmallCausal`, or its text, "small:gamma=4@FOLDER" with the folder of the smaller
            pipeline; None for plain decoding. "auto" decodes plainly, because no drafter is known to be faster.
        rule: A Rule or its text, such as "reflection"; None for "exact", the block verification of Gaussians.
        guidance_scale: The scale for all tokens; None for the pipeline's default.
        temperature: The factor on the head's noise.
        num_sampling_steps: The denoising steps of the head; None for the model's own.
        noise: The noise of all steps but a drawn last step; None to draw it from the seed.
        head_sampling: None for plain sampling; `HeadSampling(window=8)` speculates over the head's steps, which is
            exact.
    """

    domain: ClassVar[Domain] = "continuous"

    decoding: Drafter | HeadSampling | str | None = None
    guidance_scale: float | None = None
    temperature: float = 1.0
    num_sampling_steps: str | int | None = None
    noise: Noise | None = None
    head_sampling: HeadSampling | None = None

    def resolved(self, pipe: ContinuousARPipeline, prompts: object) -> Self:
        scale = pipe.guidance_scale if self.guidance_scale is None else self.guidance_scale
        scale, temperature = _scale("guidance_scale", scale), _scale("temperature", self.temperature)
        decoding, sampling = None if self.decoding == AUTO else pipe.decoding(self.decoding), self.head_sampling
        if isinstance(decoding, HeadSampling):
            if sampling is not None:
                raise ValueError(
                    "head_sampling: expected None beside a decoding that is a HeadSampling, got both; leave one out"
                )
            decoding, sampling = None, decoding
        if sampling is not None and sampling.annealing is not None:
            raise ValueError(
                "head_sampling: expected the same number of steps for every token, got annealing; leave it out"
            )
        prepared = raster_decoding(decoding)
        if decoding is not None and temperature == 0:
            raise ValueError(
                "temperature: expected a number above 0 for drafts from a distribution, got 0; decode plainly"
            )
        labels = pipe.model.prepare(prompts)
        return self.with_rows(
            labels,
            len(labels),
            pipe.model.device,
            decoding=prepared,
            guidance_scale=scale,
            temperature=temperature,
            head_sampling=sampling,
        )

    def target(self, model: CausalModel) -> CausalTarget:
        """Return the target of a resolved request."""
        head = model.transformer.head(self.num_sampling_steps)
        noise = KeyedNoise(self.keys, head.steps, head.dim) if self.noise is None else self.noise
        return CausalTarget(
            model.transformer,
            self.condition,
            head=head,
            noise=noise,
            temperature=self.temperature,
            scale=self.guidance_scale,
            listener=self.listener,
            head_sampling=self.head_sampling,
            keys=self.keys,
        )


def causal_from_state_dict(sd: Mapping[str, Tensor], config: CausalConfig | Mapping[str, Any]) -> CausalTransformer:
    """Return the model of tensors and a config, in eval mode."""
    config = CausalConfig.of(config)
    return fill_from_state_dict(sketch(lambda: CausalTransformer(config), len(sd), "config"), sd)


class ContinuousARPipeline(SavedPipeline, BasePipeline):
    """A pipeline from class labels (-1 for no class) to images, token by token in raster order. Exact with exact rules.

    Calls accept the fields of `CausalRequest` and return tokens float32 [B, L, d].

    Args:
        vae: The autoencoder; None where only tokens are needed.
        guidance_scale: The default of calls, for all tokens; 1 runs the conditional branch alone.
    """

    Request = CausalRequest
    loaders: ClassVar[Mapping[str, Load]] = {"draft": smaller_pipeline}
    Index, settings, needs_index = _CausalIndex, ("guidance_scale",), True
    components = (
        module_component("transformer", causal_from_state_dict),
        kl_component(lambda folder, *_: load_component(folder, kl_from_state_dict)),
    )

    def __init__(
        self, transformer: CausalTransformer, vae: AutoencoderKL | None = None, *, guidance_scale: float = 1.0
    ):
        self.model, self.guidance_scale = CausalModel(transformer, vae), _scale("guidance_scale", guidance_scale)

    def decoding(self, text: Any) -> Any:
        """Return the decoding that a text such as "small:gamma=4@FOLDER" names; an object is returned unchanged."""
        return decoding_from_text(text, self, "continuous", "causal")

    def tokens(self, target: CausalTarget) -> Tensor:
        return target.values


def _scale(name: str, value: float) -> float:
    return number(name, value, 0, LARGEST_SCALE)
