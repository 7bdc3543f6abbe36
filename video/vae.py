"""Causal video autoencoders by chunk: latent layout, protocol, and streaming with diffusers' Wan autoencoder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """Two models can share latents if their layouts are equal. Models read normalised latents, (latent - mean) / std."""

    channels: int
    stride: int  # pixels per cell and side
    frames: int  # pixel frames per latent frame; the first of a video stands for a single frame
    mean: tuple[float, ...]  # per channel, of the autoencoder's own latents
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"latents_mean, latents_std: expected {self.channels} numbers each, as many as channels, got "
                f"{len(self.mean)} and {len(self.std)}; correct the config of the autoencoder"
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"latents_std: expected numbers above 0, got {min(self.std)}; correct the config")

    @classmethod
    def of_wan(cls, vae: AutoencoderKLWan) -> LatentLayout:
        """Strides follow from the levels of diffusers' model, not from config fields."""
        config = vae.config
        steps = len(config.dim_mult) - 1
        stride = 2**steps * (config.patch_size or 1)
        frames = 2 ** sum(map(bool, config.temperal_downsample[:steps]))
        mean, std = (tuple(map(float, values)) for values in (config.latents_mean, config.latents_std))
        return cls(config.z_dim, stride, frames, mean, std)

    def check(self, other: LatentLayout, whose: str) -> None:
        wrong = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        if wrong:
            got = ", ".join(f"{name} {getattr(other, name)} instead of {getattr(self, name)}" for name in wrong)
            raise ValueError(f"{whose}: expected latents of the same autoencoder, got {got}; use models of one family")

    def normalised(self, latents: Tensor) -> Tensor:
        """Return the autoencoder's own latents normalised for models, float32 [B, C, F, h, w]."""
        mean, std = self._moments(latents.device)
        return (latents.float() - mean) / std

    def restored(self, latents: Tensor) -> Tensor:
        """Return latents of models as the autoencoder's own, float32 [B, C, F, h, w]."""
        mean, std = self._moments(latents.device)
        return latents.float() * std + mean

    def _moments(self, device: torch.device) -> Tensor:
        return rearrange(
            torch.tensor([self.mean, self.std], dtype=torch.float32, device=device), "two c -> two 1 c 1 1 1"
        )


@dataclass(frozen=True, slots=True)
class VAEState:
    """The memory of earlier chunks, which later chunks do not change; about 2.5 GB for Wan at 480x832 in float32."""

    entries: tuple[Tensor | str | None, ...]  # per causal convolution, a tensor [B, ...] of frames, or a marker


class StreamingVAE(Protocol):
    """A causal autoencoder. It holds no state of a request, so videos can interleave: each call takes the state after
    the earlier chunks, None at the start of a video, and returns the next. The earlier state remains valid."""

    layout: LatentLayout

    def decode(self, latents: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """Return frames float32 [B, 3, N, H, W] in -1..1 of normalised latents float [B, C, F, h, w]; the first latent
        frame of a video gives a single frame, each other `layout.frames`."""

    def encode(self, frames: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """Return normalised latents float32 [B, C, F, h, w] of frames float [B, 3, N, H, W] in -1..1."""


def small_frames(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return a context with faster kernels for small float32 frames on a CPU; values differ in rounding only. PyTorch
    runs 3D convolutions of few values five times slower than oneDNN, and its norm over a dimension other than the last
    is not vectorised. Convolutions are replaced only without gradients."""
    lean = device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return _SmallFrames() if lean else nullcontext()


class _SmallFrames(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.normalize:
            func = _normalize
        elif func is F.conv3d and not torch.is_grad_enabled():
            func = _conv3d
        return func(*args, **(kwargs or {}))


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    if p != 2 or out is not None:
        return F.normalize(x, p, dim, eps, out)
    return x / x.square().sum(dim, keepdim=True).sqrt().clamp_min(eps)


def _conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if x.dtype != torch.float32 or isinstance(padding, str) or x.ndim != 5:
        return F.conv3d(x, weight, bias, stride, padding, dilation, groups)
    stride, padding, dilation = (_three(value) for value in (stride, padding, dilation))
    return torch.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)


def _three(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value,) * 3 if isinstance(value, int) else tuple(value)


# the largest latent frame that is decoded with others in a call: below it, launches cost more than memory
SMALL_FRAME = 32 * 32


class StreamingWanVAE:
    """`AutoencoderKLWan` of any size (Wan 2.1 and 2.2) as a `StreamingVAE`.

    Any split of a video into chunks gives the pixels of a single call of the model. Frames and latents are float32 on
    the model's device, whatever dtype the model computes in.

    Args:
        model: The autoencoder of diffusers.
        quick: Whether the small frames of a chunk are decoded together, on a CPU with faster kernels (see
            `small_frames`); pixels then differ from the model's own calls in rounding.

    Raises:
        ValueError: The model tiles, so its cache would hold a single tile.
    """

    def __init__(self, model: AutoencoderKLWan, quick: bool = False):
        self.model, self.layout, self.quick = model, LatentLayout.of_wan(model), quick
        self._check_whole()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.post_quant_conv.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.post_quant_conv.weight.dtype

    @torch.no_grad()
    def decode(self, latents: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        self._check_whole()
        self._check_latents(latents)
        restored = self.layout.restored(latents.to(self.device)).to(self.dtype)
        cache = _cache(self.model, "decoder", state)
        with self._kernels():
            parts = [
                self.model.decoder(chunk, feat_cache=cache, feat_idx=[0], first_chunk=state is None and number == 0)
                for number, chunk in enumerate(self._parts(self.model.post_quant_conv(restored), state is None))
            ]
        frames = unpatchify(torch.cat(parts, dim=2), patch_size=self.model.config.patch_size or 1)
        return frames.float().clamp_(-1, 1), VAEState(tuple(cache))

    @torch.no_grad()
    def encode(self, frames: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """Encode frames, `layout.frames` each and 1 more at the start of a video; latents are the posterior's mode."""
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
        if not self.quick or hidden.shape[3] * hidden.shape[4] > SMALL_FRAME:
            return list(hidden.split(1, dim=2))
        count = hidden.shape[2]
        return list(hidden.split([1, count - 1] if first and count > 1 else [count], dim=2))

    def _check_whole(self) -> None:
        if self.model.use_tiling:
            raise ValueError("vae: expected a model that takes whole frames, got tiling; call its disable_tiling()")

    def _check_latents(self, latents: Tensor) -> None:
        if latents.ndim != 5 or latents.shape[1] != self.layout.channels or not latents.numel():
            raise ValueError(
                f"latents: expected [B, {self.layout.channels}, F, h, w] with a frame at least, got "
                f"{tuple(latents.shape)}; give the latents of this autoencoder"
            )

    def _check_frames(self, frames: Tensor, first: bool) -> None:
        stride, each = self.layout.stride, self.layout.frames
        if frames.ndim != 5 or not frames.is_floating_point() or any(side % stride for side in frames.shape[3:]):
            raise ValueError(
                f"frames: expected float [B, 3, N, H, W] with sides that are multiples of {stride}, got "
                f"{frames.dtype} {tuple(frames.shape)}; convert or crop them"
            )
        if not frames.numel() or (frames.shape[2] - first) % each:
            more = "and one more, at the start of a video" if first else "behind the start of a video"
            raise ValueError(
                f"frames: expected a multiple of {each} {more}, got {frames.shape[2]}; cut the video to such a number"
            )


def _cache(model: AutoencoderKLWan, side: str, state: VAEState | None) -> list[Tensor | str | None]:
    """Return a list that the model may write: it replaces entries and never writes into a tensor."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

    if state is not None:
        return list(state.entries)
    return [None] * sum(isinstance(module, WanCausalConv3d) for module in getattr(model, side).modules())
