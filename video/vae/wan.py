"""diffusers' Wan autoencoder, streaming: the cache that its own calls clear is the caller's here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.video.vae.layout import LatentLayout
from mmspec.video.vae.small import small_frames
from mmspec.video.vae.stream import VAEState

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

SMALL = (
    32 * 32
)  # latents of a frame up to which frames are decoded together: there launches matter, and memory does not


class StreamingWanVAE:
    """`AutoencoderKLWan` of any size (Wan 2.1 and 2.2) as a `StreamingVAE`.

    Any cut of a video into chunks gives the pixels of one call of the model. Frames and latents are float32 on the model's
    device, whatever dtype the model computes in.
    quick: small frames of one chunk together, and on a CPU through kernels that take less (see `small_frames`): pixels then
    differ from those of the model's own calls in rounding.
    Raises ValueError for a model that tiles: its cache would hold one tile.
    """

    def __init__(self, model: AutoencoderKLWan, quick: bool = False):
        self.model, self.layout, self.quick = model, LatentLayout.of_wan(model), quick
        self._check_whole()

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.model.post_quant_conv.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.post_quant_conv.weight.dtype

    @torch.no_grad()
    def decode(self, latents: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """As `StreamingVAE.decode`.   Raises ValueError for latents of another shape."""
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        self._check_whole()
        self._check_latents(latents)
        own = self.layout.restored(latents.to(self.device)).to(self.dtype)
        cache = _cache(self.model, "decoder", state)
        with self._kernels():
            parts = [
                self.model.decoder(one, feat_cache=cache, feat_idx=[0], first_chunk=state is None and number == 0)
                for number, one in enumerate(self._parts(self.model.post_quant_conv(own), state is None))
            ]
        frames = unpatchify(torch.cat(parts, dim=2), patch_size=self.model.config.patch_size or 1)
        return frames.float().clamp_(-1, 1), VAEState(tuple(cache))

    @torch.no_grad()
    def encode(self, frames: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """As `StreamingVAE.encode`; latents are the posterior's mode.

        At the start of a video a multiple of `layout.frames` and one frame more, later a multiple: one frame alone gives a
        first latent. Raises ValueError for any other number and for sides the stride does not divide.
        """
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        self._check_whole()
        self._check_frames(frames, first=state is None)
        pixels = patchify(frames.to(self.device, self.dtype), patch_size=self.model.config.patch_size or 1)
        cache = _cache(self.model, "encoder", state)
        parts, count = [], pixels.shape[2]
        starts = range(0, count, self.layout.frames) if state is not None else [0, *range(1, count, self.layout.frames)]
        with self._kernels():
            for start, stop in zip(starts, [*starts[1:], count], strict=True):
                parts.append(self.model.encoder(pixels[:, :, start:stop], feat_cache=cache, feat_idx=[0]))
            mode = self.model.quant_conv(torch.cat(parts, dim=2)).chunk(2, dim=1)[0]
        return self.layout.normalised(mode), VAEState(tuple(cache))

    def _kernels(self) -> AbstractContextManager[object]:
        return small_frames(self.device, self.dtype) if self.quick else nullcontext()

    def _parts(self, hidden: Tensor, first: bool) -> list[Tensor]:
        """What the decoder takes at a time: one frame, or all but a video's first."""
        if not self.quick or hidden.shape[3] * hidden.shape[4] > SMALL:
            return list(hidden.split(1, dim=2))
        count = hidden.shape[2]
        return list(hidden.split([1, count - 1] if first and count > 1 else [count], dim=2))

    def _check_whole(self) -> None:
        if self.model.use_tiling:
            raise ValueError(
                "vae: expected a model that takes frames whole, got one that tiles; call its disable_tiling()"
            )

    def _check_latents(self, latents: Tensor) -> None:
        if latents.ndim != 5 or latents.shape[1] != self.layout.channels or not latents.numel():
            raise ValueError(f"latents: expected [B, {self.layout.channels}, F, h, w] with a frame at least, got "
                             f"{tuple(latents.shape)}; give the latents of this autoencoder")  # fmt: skip

    def _check_frames(self, frames: Tensor, first: bool) -> None:
        stride, each = self.layout.stride, self.layout.frames
        if frames.ndim != 5 or not frames.is_floating_point() or any(side % stride for side in frames.shape[3:]):
            raise ValueError(f"frames: expected float [B, 3, N, H, W] with sides that are multiples of {stride}, got "
                             f"{frames.dtype} {tuple(frames.shape)}; convert or crop them")  # fmt: skip
        if not frames.numel() or (frames.shape[2] - first) % each:
            more = "and one more, at the start of a video" if first else "behind the start of a video"
            raise ValueError(f"frames: expected a multiple of {each} {more}, got {frames.shape[2]}; cut them so")


def _cache(model: AutoencoderKLWan, side: str, state: VAEState | None) -> list[Tensor | str | None]:
    """A list the model may write: it puts new entries in place of the old and never writes into one."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

    if state is not None:
        return list(state.entries)
    return [None] * sum(isinstance(module, WanCausalConv3d) for module in getattr(model, side).modules())
