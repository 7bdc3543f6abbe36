"""A LlamaGen with heads that read on the way what its prompt asked for: auxiliary heads, dropped after training.

Left alone a small one learns textures for thousands of steps first: an object's color and shape are a few bits of a picture
of 256 uncertain codes. What the heads are asked, and how their losses fade, is in `training`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.transformer import Transformer

from ..world.pictures import CLASSES
from .caption_encoder import HEADS


class WithAuxiliaryHeads(nn.Module):
    """A transformer with heads on the states behind its middle layer, which read the facts of the picture or the video.

    heads: sizes of those that read the whole of it, objects: classes of the object at a code; of pictures unless given.
    """

    def __init__(self, gpt: Transformer, heads: Mapping[str, int] = HEADS, objects: int = CLASSES):
        super().__init__()
        width = gpt.config.dim
        self.gpt = gpt
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.heads = nn.ModuleDict({name: nn.Linear(2 * width, size) for name, size in heads.items()})
        self.here = nn.Linear(2 * width, objects)

    def forward(self, condition: Tensor, codes: Tensor, mask: Tensor | None, drop: Tensor) -> tuple[Tensor, Tensor]:
        """`Transformer.training_logits`, and the states of its last T positions [B, T, dim] behind the middle layer."""
        seen: list[Tensor] = []
        middle = self.gpt.layers[self.gpt.config.n_layer // 2]
        hook = middle.register_forward_hook(lambda module, given, out: seen.append(out))
        try:
            logits = self.gpt.training_logits(condition, codes, mask, drop)
        finally:
            hook.remove()
        return logits, seen[0][:, -codes.shape[1] :]

    def read_picture(self, states: Tensor) -> dict[str, Tensor]:
        """states float [..., dim] -> float32 logits per fact of the whole picture, [..., size of the head]."""
        hidden = self._mixed(states)
        return {name: head(hidden).float() for name, head in self.heads.items()}

    def read_object(self, states: Tensor) -> Tensor:
        """states float [..., dim] -> float32 logits of the class of the object that lies here, [..., objects]."""
        return self.here(self._mixed(states)).float()

    def _mixed(self, states: Tensor) -> Tensor:
        return self.mix(F.rms_norm(states, states.shape[-1:]))
