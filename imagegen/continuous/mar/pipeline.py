"""The MAR pipeline: class labels or captions into images, and the folder that holds its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.core.loop import DecodingRun
from mmspec.core.rules.base import Rule, UnsupportedCombination
from mmspec.imagegen.base_pipeline import AUTO, BasePipeline, ImageOutput
from mmspec.imagegen.components import load_component, write_component
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise, Noise
from mmspec.imagegen.continuous.kl import kl_from_state_dict, write_kl
from mmspec.imagegen.continuous.mar.adapter import Encode, MARModel
from mmspec.imagegen.continuous.mar.config import SIZES
from mmspec.imagegen.continuous.mar.load import mar_from_state_dict
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.masked_decoding import MaskedDecoding, PlainSteps
from mmspec.imagegen.continuous.masked_target import Listener, MaskedTarget, Schedule, TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps
from mmspec.imagegen.llamagen.captions import CaptionEncoder, read_captions, write_captions
from mmspec.io.files import write_json_atomic
from mmspec.io.pretrained import folder_of
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import LARGEST_SCALE, check_types, number

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


INDEX = "model_index.json"
SETTINGS = ("guidance_scale", "guidance_schedule", "num_iter")


@dataclass(frozen=True, slots=True)
class _MARIndex:
    """What model_index.json says besides names of classes."""

    vae: list | None = None
    text_encoder: list | None = None
    clean_captions: bool = True
    guidance_scale: float | None = None
    guidance_schedule: str | None = None
    num_iter: int | None = None


def read_parts(folder: Path, kind: str) -> tuple[MAR, AutoencoderKL | None, CaptionEncoder | None, dict[str, Any]]:
    """Transformer, autoencoder in float32, caption encoder, and the settings that the index gives; without an index, the
    transformer and the autoencoder that are there.

    Raises ValueError, with the file, for a folder of another `kind` of pipeline, and as the loaders do.
    """
    indexed = (folder / INDEX).exists()
    index = read_json(folder / INDEX) if indexed else {}
    if (found := index.get("_class_name", kind)) != kind:
        raise ValueError(f"{folder / INDEX}: expected a {kind}, got {found!r}; check the folder")
    with naming(folder / INDEX):
        check_types(_MARIndex, index)
    transformer = load_component(folder / "transformer", mar_from_state_dict, "mar")
    vae = captions = None
    if index.get("vae") if indexed else (folder / "vae").is_dir():
        vae = load_component(folder / "vae", kl_from_state_dict, "mar").float()
    if index.get("text_encoder"):
        captions = read_captions(folder, transformer.config.buffer_size, cleaned=index.get("clean_captions", True))
    return transformer, vae, captions, {name: index[name] for name in SETTINGS if index.get(name) is not None}


def save_parts(
    folder: Path, kind: str, transformer: MAR, vae: AutoencoderKL | None, captions: object, settings: dict[str, Any]
) -> None:
    """Writes what `read_parts` reads; the index comes last.   Raises ValueError as `write_captions` does."""
    index = {"_class_name": kind, "transformer": ["mmspec", "MAR"], **settings}
    if captions is not None:
        index |= write_captions(captions, folder)
    write_component(transformer, folder / "transformer")
    if vae is not None:
        write_kl(vae, folder / "vae")
        index["vae"] = ["diffusers", "AutoencoderKL"]
    write_json_atomic(folder / INDEX, index)


_FILES = ("*.json", "*.safetensors")


class MARPipeline(BasePipeline):
    """Class labels, and where the model knows them captions, into images.

    A folder holds transformer/ and, where there are such, vae/, each as `convert` wrote it, text_encoder/ and tokenizer/ as
    transformers wrote them, and model_index.json.
    vae: None where only tokens are wanted.   captions: see `MARModel`.
    guidance_scale, guidance_schedule, num_iter: what calls use by default. guidance_scale None is that of the published
    evaluation for the published sizes, else 1; the schedule is its too, and num_iter the public sampler's 64.
    Raises ValueError for defaults out of range and a vae of another model.
    """

    def __init__(
        self, transformer: MAR, vae: AutoencoderKL | None = None, captions: Encode | None = None, *,
        guidance_scale: float | None = None, guidance_schedule: Schedule = "linear", num_iter: int = 64,
    ):  # fmt: skip
        self.model = MARModel(transformer, vae, captions)
        width, depth = transformer.config.encoder_embed_dim, transformer.config.encoder_depth
        published = {size[:2]: size[-1] for size in SIZES.values()}
        self.guidance_scale = published.get((width, depth), 1.0) if guidance_scale is None else guidance_scale
        self.guidance_schedule, self.num_iter = guidance_schedule, num_iter
        TokenGuidance(self.guidance_scale, guidance_schedule)  # defaults are refused here, not in a later call
        cosine_steps(self.model.total, num_iter)

    def __call__(
        self,
        prompts: object,
        *,
        decoding: MaskedDecoding | Literal["auto"] | None = None,
        rule: str | Rule | None = None,
        guidance_scale: float | TokenGuidance | None = None,
        guidance_schedule: Schedule | None = None,
        temperature: float = 1.0,
        num_iter: int | None = None,
        num_sampling_steps: str | int | None = None,
        seed: int | Sequence[int] | None = None,
        order: Tensor | None = None,
        noise: Noise | None = None,
        pixels: bool = True,
        listener: Listener | None = None,
    ) -> ImageOutput:
        """One image per label.

        prompts: class labels, -1 for no class; or texts, where there is a caption encoder.
        decoding: None decodes plainly through the same loop: the target alone, several tokens a pass. So does "auto": what
        spares passes of masked models is relaxed, and never taken unasked.
        rule: None for the decoding's own; "exact" says the same where the decoding is plain.
        guidance_scale: s, see `TokenGuidance`; at 1 only the conditional branch runs.   guidance_schedule: "linear" or
        "constant".   temperature: scales the noise of every denoising step; 0 leaves the initial noise alone.
        num_iter: passes over the image.   num_sampling_steps: of the diffusion head, see `kept_timesteps`.
        seed: an int, one int per row, or None to draw one from torch's global generator.
        order: int64 [B, L], a permutation of the positions a row, consumed from its end; None to draw it from the seed.
        noise: None to draw it from the seed, see `GivenNoise`.
        pixels: False leaves the tokens undecoded.   listener(row, filled): progress, after every round.
        Returns an `ImageOutput` whose tokens are float32 [B, L, d]. Raises ValueError for unsupported combinations.
        """
        how = dict(decoding=decoding, rule=rule, guidance_scale=guidance_scale, guidance_schedule=guidance_schedule,
                   temperature=temperature, num_iter=num_iter, num_sampling_steps=num_sampling_steps, seed=seed, order=order,
                   noise=noise, listener=listener)  # fmt: skip
        return self.generate(prompts, pixels, **how)

    def start(
        self,
        prompts: object,
        *,
        decoding: MaskedDecoding | Literal["auto"] | None = None,
        rule: str | Rule | None = None,
        guidance_scale: float | TokenGuidance | None = None,
        guidance_schedule: Schedule | None = None,
        temperature: float = 1.0,
        num_iter: int | None = None,
        num_sampling_steps: str | int | None = None,
        seed: int | Sequence[int] | None = None,
        order: Tensor | None = None,
        noise: Noise | None = None,
        listener: Listener | None = None,
    ) -> DecodingRun:
        """A request that has not run yet: call its `step()` until it returns False. Arguments as in the call."""
        model = self.model
        decoding = PlainSteps() if decoding in (None, AUTO) else decoding
        judge = self._rule(decoding, rule)
        temperature = number("temperature", temperature, 0, LARGEST_SCALE)
        guidance = guidance_scale
        if not isinstance(guidance, TokenGuidance):
            scale = self.guidance_scale if guidance_scale is None else guidance_scale
            scale = number("guidance_scale", scale, 0, LARGEST_SCALE)
            guidance = TokenGuidance(scale, guidance_schedule or self.guidance_schedule)
        elif guidance_schedule is not None:
            raise ValueError(f"guidance_schedule: expected it left out beside a TokenGuidance, got {guidance_schedule!r}; "
                             "say it there")  # fmt: skip
        steps = decoding.steps(model.total, self.num_iter if num_iter is None else num_iter)
        labels, head = model.prepare(prompts), model.head(num_sampling_steps)
        keys = Keys.of(seed, len(labels), model.device)
        order = decoding.orders(keys, model.total) if order is None else _checked(order, len(labels), model.total)
        noise = KeyedNoise(keys, head.steps, head.dim) if noise is None else noise
        size = getattr(noise, "steps", None), getattr(noise, "dim", None)
        if size != (head.steps, head.dim):
            raise ValueError(f"noise: expected {head.steps} steps of {head.dim} values, got {size[0]} of {size[1]}; "
                             "draw it for this head")  # fmt: skip
        target = decoding.target(model, labels, num_sampling_steps=num_sampling_steps, steps=steps, guidance=guidance,
                                 temperature=temperature, order=order.to(model.device, torch.long), noise=noise,
                                 listener=listener, keys=keys)  # fmt: skip
        return DecodingRun(target, decoding, judge, keys)

    def _rule(self, decoding: MaskedDecoding, rule: str | Rule | None) -> Rule:
        if not isinstance(decoding, MaskedDecoding):
            raise ValueError(f"decoding: expected None, 'auto' or a decoding of masked tokens, got {decoding!r}; leave it "
                             "out or make one")  # fmt: skip
        own = decoding.rule(self.model)
        if isinstance(rule, Rule):
            return rule
        if rule is not None and rule != own.name:
            raise UnsupportedCombination(f"rule: expected it left out or {own.name!r}, by which decoding {decoding.name!r} is judged, got "
                         f"{rule!r}; drop it")  # fmt: skip
        return own

    def tokens(self, target: MaskedTarget) -> Tensor:
        """float32 [B, L, d]."""
        return target.values

    @property
    def image_size(self) -> int:
        """Pixels a side."""
        return self.model.transformer.config.img_size

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path, *, dtype: torch.dtype | None = None) -> Self:
        """The pipeline saved in a folder, or in a hub repository named by its id (the only case that uses the network).

        dtype: of the transformer, None for the file's. The autoencoder runs in float32, as in the public sampler.
        Raises ValueError for a folder that is no pipeline, and as the loaders do.
        """
        folder = folder_of(path_or_repo, _FILES)
        with naming(folder):
            transformer, vae, captions, settings = read_parts(folder, cls.__name__)
            pipe = cls(transformer, vae, captions, **settings)
        return pipe if dtype is None else pipe.to(dtype=dtype)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the pipeline; the index comes last."""
        settings = {name: getattr(self, name) for name in SETTINGS}
        model = self.model
        save_parts(Path(folder), type(self).__name__, model.transformer, model.vae, model.captions, settings)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Moves everything; `dtype` is for transformer and caption encoder, the autoencoder stays in its own."""
        self.model.transformer.to(device=device, dtype=dtype)
        if self.model.vae is not None:
            self.model.vae.to(device=device)
        if isinstance(self.model.captions, CaptionEncoder):
            self.model.captions.encoder.to(device=device, dtype=dtype)
        return self


def _checked(order: Tensor, rows: int, total: int) -> Tensor:
    if not isinstance(order, Tensor):
        raise ValueError(f"order: expected an integer tensor of shape [{rows}, {total}], got {order!r:.60}; pass one")
    sound = order.shape == (rows, total) and not order.is_floating_point()
    if not sound or not torch.equal(order.sort(-1).values.cpu(), torch.arange(total).expand(rows, -1)):
        raise ValueError(f"order: expected a permutation of 0..{total - 1} for each of {rows} rows, got "
                         f"{tuple(order.shape)} of {order.dtype}; give each position once")  # fmt: skip
    return order
