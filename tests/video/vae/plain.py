"""The Wan autoencoder over whole videos, with no cache at all: what its chunk by chunk passes have to come to.

Every convolution sees zeros before the video. The first frame of a video is never doubled in time, and where frames are
doubled it is not seen either: the convolution over time sees zeros before the second frame.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample, patchify, unpatchify
from torch import Tensor, nn


def plain_decode(model: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Frames [B, 3, N, H, W] of normalised latents."""
    mean, std = (torch.tensor(values)[:, None, None, None] for values in _statistics(model))
    with torch.no_grad(), _whole():
        out = model.decoder(model.post_quant_conv(latents * std + mean), first_chunk=True)
    return unpatchify(out, model.config.patch_size or 1).clamp(-1, 1)


def plain_encode(model: AutoencoderKLWan, frames: Tensor) -> Tensor:
    """Normalised latents [B, C, F, h, w], the posterior's mode."""
    mean, std = (torch.tensor(values)[:, None, None, None] for values in _statistics(model))
    with torch.no_grad(), _whole():
        out = model.quant_conv(model.encoder(patchify(frames, model.config.patch_size or 1)))
    return (out.chunk(2, 1)[0] - mean) / std


def _statistics(model: AutoencoderKLWan) -> tuple[list[float], list[float]]:
    return model.config.latents_mean, model.config.latents_std


@contextmanager
def _whole():  # noqa: ANN202
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WanResample, "forward", _resampled)
        yield


def _resampled(self: WanResample, x: Tensor, **cache: object) -> Tensor:
    assert not any(value is not None for name, value in cache.items() if name == "feat_cache")
    if self.mode == "upsample3d":
        first, later = x[:, :, :1], x[:, :, 1:]
        if later.shape[2]:
            both = _over_time(self.time_conv, F.pad(later, (0, 0, 0, 0, 2, 0)), 1)
            later = torch.stack(both.chunk(2, 1), 3).flatten(2, 3)  # frames in turn
        x = torch.cat((first, later), 2)
    frames = torch.stack([self.resample(frame) for frame in x.unbind(2)], 2)
    if self.mode == "downsample3d" and frames.shape[2] > 1:
        frames = torch.cat((frames[:, :, :1], _over_time(self.time_conv, frames, 2)), 2)
    return frames


def _over_time(conv: nn.Conv3d, x: Tensor, stride: int) -> Tensor:
    return F.conv3d(x, conv.weight, conv.bias, stride=(stride, 1, 1))
