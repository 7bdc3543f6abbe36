"""MAR and its autoencoder as a `MaskedModel`: conditions, tokens of latents, pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

from mmspec.imagegen.conditioning import class_labels, describe_value
from mmspec.imagegen.continuous.mar.diffusion_head import DiffusionHead
from mmspec.imagegen.continuous.mar.mar_config import MARConfig
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.schedules.token_cache import FULL_PASS, DecoderPass

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


def patchify(latents: Tensor, patch: int) -> Tensor:
    """Return tokens [B, L, c p p] of latents [B, c, h, w], in raster order."""
    return rearrange(latents, "b c (h p) (w q) -> b (h w) (c p q)", p=patch, q=patch)


def unpatchify(tokens: Tensor, patch: int, grid: int) -> Tensor:
    """Return latents [B, c, h, w] of tokens [B, grid grid, c p p]."""
    return rearrange(tokens, "b (h w) (c p q) -> b c (h p) (w q)", h=grid, p=patch, q=patch)


def decode_tokens(vae: AutoencoderKL, tokens: Tensor, patch: int, grid: int) -> Tensor:
    """Return pixels float32 [B, 3, H, W] in 0..1 of tokens [B, grid grid, c p p]."""
    latents = unpatchify(tokens, patch, grid) / vae.config.scaling_factor
    return ((vae.decode(latents.to(vae.dtype)).sample.float() + 1) / 2).clamp(0, 1)


NO_CLASS = -1
Encode = Callable[[list[str]], tuple[Tensor, Tensor]]
NO_PIXELS = "vae: expected an autoencoder for pixels, got none; give the pipeline an autoencoder, or pixels=False"


class MARModel:
    """A `MaskedModel` over MAR, its autoencoder and its `CaptionEncoder`, each None where it is not needed."""

    name = "MAR"

    def __init__(self, transformer: MAR, vae: AutoencoderKL | None = None, captions: Encode | None = None):
        if vae is not None:
            check_pair(transformer.config, vae)
        if captions is not None and not transformer.config.caption_dim:
            raise ValueError("captions: expected None for a model without caption_dim, got an encoder; leave it out")
        self.transformer, self.vae, self.captions = transformer, vae, captions
        self.total, self.dim = transformer.config.tokens, transformer.config.token_dim

    @property
    def device(self) -> torch.device:
        return self.transformer.mask_token.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.mask_token.dtype

    @property
    def no_pixels(self) -> str | None:
        return None if self.vae is not None else NO_PIXELS

    def prepare(self, prompts: object) -> Tensor:
        """Convert labels 0..class_num - 1, -1 for none, or texts to features float [B, buffer_size, caption_dim]."""
        texts = [prompts] if isinstance(prompts, str) else prompts
        if self.captions is not None and isinstance(texts, Sequence) and texts and isinstance(texts[0], str):
            return self._features(texts)
        return class_labels(prompts, self.transformer.config.class_num, NO_CLASS).to(self.device)

    def _features(self, texts: Sequence[object]) -> Tensor:
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"prompts: expected texts or class labels, got both, {describe_value(texts)}; use a request for each"
            )
        features, config = self.captions(list(texts))[0], self.transformer.config
        wanted = (config.buffer_size, config.caption_dim)
        if tuple(features.shape[1:]) != wanted:
            raise ValueError(
                f"captions: expected features [B, {wanted[0]}, {wanted[1]}], got {tuple(features.shape)}; use "
                "the caption encoder the model was trained with"
            )
        return features.to(self.device, self.dtype)

    def condition(
        self,
        tokens: Tensor,
        mask: Tensor,
        labels: Tensor,
        paired: bool,
        wanted: Tensor | None = None,
        slots: DecoderPass = FULL_PASS,
    ) -> Tensor:
        if not paired:
            return self.transformer(tokens, mask, labels, slots)[None]
        tokens, mask = tokens.repeat(2, 1, 1), mask.repeat(2, 1)
        z = self.transformer(tokens, mask, torch.cat((labels, null_conditions(labels))), slots)
        return z.unflatten(0, (2, -1))

    def head(self, num_sampling_steps: str | int | None = None) -> DiffusionHead:
        return self.transformer.head(num_sampling_steps)

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        config = self.transformer.config
        return decode_tokens(self._autoencoder(), tokens, config.patch_size, config.grid)

    @torch.no_grad()
    def encode(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return tokens float32 [B, L, d] of images [B, 3, H, W] in -1..1. `noise`, standard normal in the shape of the
        latents, draws from the posterior; None gives its mean."""
        config, vae = self.transformer.config, self._autoencoder()
        if images.dim() != 4 or images.shape[1:] != (3, config.img_size, config.img_size):
            raise ValueError(
                f"images: expected [B, 3, {config.img_size}, {config.img_size}], got {tuple(images.shape)}; crop "
                "or resize them"
            )
        law = vae.encode(images.to(vae.dtype)).latent_dist
        latents = law.mean if noise is None else law.mean + law.std * noise
        return patchify(latents.float() * vae.config.scaling_factor, config.patch_size)

    def _autoencoder(self) -> AutoencoderKL:
        if self.vae is None:
            raise ValueError(NO_PIXELS)
        return self.vae


def null_conditions(labels: Tensor) -> Tensor:
    return torch.full_like(labels, NO_CLASS) if labels.dim() == 1 else torch.zeros_like(labels)


def check_pair(config: MARConfig, vae: AutoencoderKL) -> None:
    channels, stride = vae.config.latent_channels, 2 ** (len(vae.config.block_out_channels) - 1)
    if (channels, stride) != (config.vae_embed_dim, config.vae_stride):
        raise ValueError(
            f"vae: expected {config.vae_embed_dim} channels at a stride of {config.vae_stride}, got {channels} "
            f"at {stride}; use the autoencoder the transformer was trained with"
        )
