from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.drafting.named_weights import Load, decoding_from_text, fitted_pipeline
from mmspec.core.round.loop import Drafter
from mmspec.imagegen.base_pipeline import BasePipeline
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.conditioning import class_labels
from mmspec.imagegen.continuous.causal.target import CausalTarget
from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling, KeyedNoise, Noise
from mmspec.imagegen.continuous.kl import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.adapter import NO_CLASS, NO_PIXELS, decode_tokens
from mmspec.imagegen.request import AUTO, PipelineRequest, raster_decoding
from mmspec.io.files import write_json_atomic
from mmspec.io.loading import fill_from_state_dict, sketch
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import LARGEST_SCALE, check_types, number
from mmspec.methods import Domain

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

INDEX = "model_index.json"


@dataclass(frozen=True, slots=True)
class _CausalIndex:
    """The fields of model_index.json besides class names."""

    vae: list | None = None
    guidance_scale: float = 1.0


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


def _draft(weights: str, pipe: ContinuousARPipeline) -> ContinuousARPipeline:
    return fitted_pipeline(
        from_zoo(weights) or ContinuousARPipeline.from_pretrained(weights), ContinuousARPipeline, pipe
    )


class ContinuousARPipeline(BasePipeline):
    """A pipeline from class labels (-1 for no class) to images, token by token in raster order. Exact with exact rules.

    Calls accept the fields of `CausalRequest` and return tokens float32 [B, L, d].

    Args:
        vae: The autoencoder; None where only tokens are needed.
        guidance_scale: The default of calls, for all tokens; 1 runs the conditional branch alone.
    """

    Request = CausalRequest
    loaders: ClassVar[Mapping[str, Load]] = {"draft": _draft}

    def __init__(
        self, transformer: CausalTransformer, vae: AutoencoderKL | None = None, *, guidance_scale: float = 1.0
    ):
        self.model, self.guidance_scale = CausalModel(transformer, vae), _scale("guidance_scale", guidance_scale)

    def decoding(self, text: Any) -> Any:
        """Return the decoding that a text such as "small:gamma=4@FOLDER" names; an object is returned unchanged."""
        return decoding_from_text(text, self, "continuous", "causal")

    def tokens(self, target: CausalTarget) -> Tensor:
        return target.values

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path) -> Self:
        """Load the pipeline of a folder."""
        folder = folder_of(path_or_repo)
        with naming(folder):
            index = read_json(folder / INDEX)
            if index.get("_class_name") != cls.__name__:
                raise ValueError(
                    f"{folder / INDEX}: expected a {cls.__name__}, got {index.get('_class_name')!r}; check the folder"
                )
            with naming(folder / INDEX):
                check_types(_CausalIndex, index)
            transformer = load_component(folder / "transformer", causal_from_state_dict)
            vae = load_component(folder / "vae", kl_from_state_dict) if index.get("vae") else None
            return cls(transformer, vae, guidance_scale=index.get("guidance_scale", 1.0))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pipeline; the index is written last."""
        folder, index = Path(folder), {"_class_name": type(self).__name__, "guidance_scale": self.guidance_scale}
        write_component(self.model.transformer, folder / "transformer")
        if self.model.vae is not None:
            write_kl(self.model.vae, folder / "vae")
            index["vae"] = ["diffusers", "AutoencoderKL"]
        write_json_atomic(folder / INDEX, index)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move all parts; the dtype is the transformer's, the autoencoder stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if self.model.vae is not None:
            self.model.vae.to(device=device)
        return self


def _scale(name: str, value: float) -> float:
    return number(name, value, 0, LARGEST_SCALE)


def causal_from_state_dict(sd: Mapping[str, Tensor], config: CausalConfig | Mapping[str, Any]) -> CausalTransformer:
    """Return the model of tensors and a config, in eval mode."""
    config = CausalConfig.of(config)
    return fill_from_state_dict(sketch(lambda: CausalTransformer(config), len(sd), "config"), sd)
