"""A causal model of continuous tokens from a folder to pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.core.loop import Drafter
from mmspec.core.pipeline_parts import Load, decoding_from_text, fitted_pipeline
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
    """What model_index.json says besides names of classes."""

    vae: list | None = None
    guidance_scale: float = 1.0


class CausalModel:
    """The transformer and its autoencoder; vae None where only tokens are wanted. A token is a cell of the latent."""

    def __init__(self, transformer: CausalTransformer, vae: AutoencoderKL | None = None):
        if vae is not None and vae.config.latent_channels != transformer.config.token_dim:
            raise ValueError(f"vae: expected {transformer.config.token_dim} channels, got {vae.config.latent_channels}; use "
                             "the autoencoder the transformer was trained with")  # fmt: skip
        self.transformer, self.vae = transformer, vae

    @property
    def device(self) -> torch.device:
        return self.transformer.position.device

    @property
    def no_pixels(self) -> str | None:
        return None if self.vae is not None else NO_PIXELS

    def prepare(self, prompts: object) -> Tensor:
        """Labels 0..class_num - 1, or -1 for no class, one or several.   Raises ValueError for anything else."""
        return class_labels(prompts, self.transformer.config.class_num, NO_CLASS).to(self.device)

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        return decode_tokens(self.vae, tokens, 1, self.transformer.config.grid)


@dataclass(frozen=True, kw_only=True)
class CausalRequest(PipelineRequest):
    """The settings of a request to a `ContinuousARPipeline`.

    decoding: None decodes plainly through the same loop; else a drafter such as `SmallCausal`, or its text,
        "small:gamma=4@FOLDER" with the folder of the smaller pipeline. "auto" decodes plainly: no drafter is at hand that is
        known to pay.
    rule: None for "exact", block verification of Gaussians; else a Rule or its text, such as "reflection".
    guidance_scale: the same for all tokens; None for the pipeline's default.
    temperature, num_sampling_steps: of the head.
    noise: of the head's steps but for the last drawn one; None to draw it from the seed.
    head_sampling: None for plain sampling; `HeadSampling(window=8)` speculates over the head's steps, which is exact.
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
                raise ValueError("head_sampling: expected it or a decoding that is one, got both; leave one out")
            decoding, sampling = None, decoding
        if sampling is not None and sampling.annealing is not None:
            raise ValueError("head_sampling: expected as many steps for every token, got annealing; leave it out")
        prepared = raster_decoding(decoding)
        if decoding is not None and temperature == 0:
            raise ValueError("temperature: expected a number above 0 for drafts of a law, got 0; decode plainly")
        labels = pipe.model.prepare(prompts)
        return self.with_rows(labels, len(labels), pipe.model.device, decoding=prepared, guidance_scale=scale,
                              temperature=temperature, head_sampling=sampling)  # fmt: skip

    def target(self, model: CausalModel) -> CausalTarget:
        """The target of a resolved request."""
        head = model.transformer.head(self.num_sampling_steps)
        noise = KeyedNoise(self.keys, head.steps, head.dim) if self.noise is None else self.noise
        return CausalTarget(model.transformer, self.condition, head=head, noise=noise, temperature=self.temperature,
                            scale=self.guidance_scale, listener=self.listener, head_sampling=self.head_sampling,
                            keys=self.keys)  # fmt: skip


def _draft(weights: str, pipe: ContinuousARPipeline) -> ContinuousARPipeline:
    """The smaller pipeline that a text names."""
    return fitted_pipeline(
        from_zoo(weights) or ContinuousARPipeline.from_pretrained(weights), ContinuousARPipeline, pipe
    )


class ContinuousARPipeline(BasePipeline):
    """Class labels (-1 for no class) into images, one token after the other in raster order. Calls take the fields of
    `CausalRequest`, and return tokens float32 [B, L, d]. Exact with exact rules.

    guidance_scale: what calls use by default, the same for all tokens; 1 runs the conditional branch alone.
    """

    Request = CausalRequest
    loaders: ClassVar[Mapping[str, Load]] = {"draft": _draft}

    def __init__(
        self, transformer: CausalTransformer, vae: AutoencoderKL | None = None, *, guidance_scale: float = 1.0
    ):
        self.model, self.guidance_scale = CausalModel(transformer, vae), _scale("guidance_scale", guidance_scale)

    def decoding(self, text: Any) -> Any:
        """The decoding that a text such as "small:gamma=4@FOLDER" asks for; an object as it is.   Raises ValueError as
        `parse`, and where the smaller pipeline is not at hand."""
        return decoding_from_text(text, self, "continuous", "causal")

    def tokens(self, target: CausalTarget) -> Tensor:
        """float32 [B, L, d]."""
        return target.values

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path) -> Self:
        """The pipeline saved in a folder. Raises ValueError for a folder that is none, and for damaged files."""
        folder = folder_of(path_or_repo)
        with naming(folder):
            index = read_json(folder / INDEX)
            if index.get("_class_name") != cls.__name__:
                raise ValueError(f"{folder / INDEX}: expected a {cls.__name__}, got {index.get('_class_name')!r}; check the "
                                 "folder")  # fmt: skip
            with naming(folder / INDEX):
                check_types(_CausalIndex, index)
            transformer = load_component(folder / "transformer", causal_from_state_dict)
            vae = load_component(folder / "vae", kl_from_state_dict) if index.get("vae") else None
            return cls(transformer, vae, guidance_scale=index.get("guidance_scale", 1.0))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the pipeline; the index comes last."""
        folder, index = Path(folder), {"_class_name": type(self).__name__, "guidance_scale": self.guidance_scale}
        write_component(self.model.transformer, folder / "transformer")
        if self.model.vae is not None:
            write_kl(self.model.vae, folder / "vae")
            index["vae"] = ["diffusers", "AutoencoderKL"]
        write_json_atomic(folder / INDEX, index)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move everything; the dtype is the transformer's, the autoencoder stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if self.model.vae is not None:
            self.model.vae.to(device=device)
        return self


def _scale(name: str, value: float) -> float:
    return number(name, value, 0, LARGEST_SCALE)


def causal_from_state_dict(sd: Mapping[str, Tensor], config: CausalConfig | Mapping[str, Any]) -> CausalTransformer:
    """The model of tensors and a config, in eval mode.   Raises ValueError, one sentence, for what does not fit."""
    config = CausalConfig.of(config)
    return fill_from_state_dict(sketch(lambda: CausalTransformer(config), len(sd), "config"), sd)
