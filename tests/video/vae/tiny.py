"""Small random Wan autoencoders of each kind: as Wan 2.1 has it, with patches, and with the residual paths of Wan 2.2.

A `Stream` pushes the chunks of a video through one of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from mmspec.video.vae import VAEState

CHANNELS = 3
MEAN, STD = [0.3, -0.2, 0.1], [2.0, 0.5, 1.5]
KINDS = {
    "wan 2.1": {"dim_mult": [1, 2, 2, 4], "temperal_downsample": [False, True, True]},
    "patches": {"dim_mult": [1, 2, 2], "temperal_downsample": [True, True], "patch_size": 2},
    "wan 2.2": {
        "dim_mult": [1, 2, 4, 4],
        "temperal_downsample": [False, True, True],
        "patch_size": 2,
        "is_residual": True,
    },
    "two frames a latent": {"dim_mult": [1, 2], "temperal_downsample": [True]},
}


def autoencoder(kind: str = "patches") -> AutoencoderKLWan:
    torch.manual_seed(3)
    config = KINDS[kind]
    pixels = 3 * config.get("patch_size", 1) ** 2
    model = AutoencoderKLWan(
        base_dim=4,
        z_dim=CHANNELS,
        num_res_blocks=1,
        latents_mean=MEAN,
        latents_std=STD,
        in_channels=pixels,
        out_channels=pixels,
        **config,
    )
    for value in model.parameters():  # the usual start leaves norms and biases without effect
        value.data.add_(torch.randn_like(value) * 0.05)
    return model.eval()


Step = Callable[[Tensor, VAEState | None], tuple[Tensor, VAEState]]


class Stream:
    """A video's place in an autoencoder: `Stream(vae.decode)` or `Stream(vae.encode)`.

    A chunk that fails leaves the place as it was. `restore` undoes every chunk since `snapshot`, without a trace.
    """

    def __init__(self, step: Step, state: VAEState | None = None):
        self._step, self._state = step, state

    def push(self, chunk: Tensor) -> Tensor:
        """The next chunk's frames or latents."""
        out, self._state = self._step(chunk, self._state)
        return out

    def snapshot(self) -> VAEState | None:
        """The place, for `restore`; None at the start. Nothing is copied."""
        return self._state

    def restore(self, state: VAEState | None) -> None:
        """Goes back to a place, of this video or of another of the same autoencoder."""
        self._state = state


def rows_of(state: VAEState, rows: list[int]) -> VAEState:
    """The state of some videos of the batch."""
    return VAEState(tuple(entry[rows] if isinstance(entry, torch.Tensor) else entry for entry in state.entries))


def bytes_of(state: VAEState) -> int:
    """The memory of the tensors of a state."""
    return sum(entry.nbytes for entry in state.entries if isinstance(entry, torch.Tensor))
