"""Shared parts of LlamaGen trainings: their recipe, auxiliary heads, and the loss of codes.

A small LlamaGen learns textures for thousands of steps before the objects of a prompt: color and shape are a few bits
of 256 uncertain codes. Auxiliary heads teach the objects first and are removed after training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.zoo.architectures.caption_encoder import HEADS
from mmspec.zoo.training.loop import ZooRecipe
from mmspec.zoo.world.image import CLASSES

DROP = 0.1  # share of rows with the null condition, for guidance


class WithAuxiliaryHeads(nn.Module):
    """A transformer with heads on the states after its middle layer, which read the facts of a picture or a video."""

    def __init__(self, gpt: Transformer, heads: Mapping[str, int] = HEADS, objects: int = CLASSES):
        super().__init__()
        width = gpt.config.dim
        self.gpt = gpt
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU())
        self.heads = nn.ModuleDict({name: nn.Linear(2 * width, size) for name, size in heads.items()})
        self.here = nn.Linear(2 * width, objects)

    def forward(self, condition: Tensor, codes: Tensor, mask: Tensor | None, drop: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of `Transformer.training_logits`, [B, T, V], and the middle states [B, T, dim] of the last
        T positions, from codes int64 [B, T] and the condition's mask, bool [B, S]. `drop` bool [B] are rows with the
        null condition."""
        seen: list[Tensor] = []
        middle = self.gpt.layers[self.gpt.config.n_layer // 2]
        hook = middle.register_forward_hook(lambda module, given, out: seen.append(out))
        try:
            logits = self.gpt.training_logits(condition, codes, mask, drop)
        finally:
            hook.remove()
        return logits, seen[0][:, -codes.shape[1] :]

    def read_picture(self, states: Tensor) -> dict[str, Tensor]:
        """Return the facts of the whole picture from states [..., dim]: float32 logits per fact, [..., size of the
        head]."""
        hidden = self._mixed(states)
        return {name: head(hidden).float() for name, head in self.heads.items()}

    def read_object(self, states: Tensor) -> Tensor:
        """Return float32 logits [..., objects] of the class of the object at a code, from states [..., dim]."""
        return self.here(self._mixed(states)).float()

    def _mixed(self, states: Tensor) -> Tensor:
        return self.mix(F.rms_norm(states, states.shape[-1:]))


@dataclass(frozen=True, slots=True)
class CodeRecipe(ZooRecipe):
    weight_decay = 0.05
    name: str
    config: GPTConfig
    steps: int
    lr: float = 2e-3
    batch: int = 16
    reading: float = 0.3  # weight of the heads' loss; it falls to 0, so that the codes alone are learnt in the end
    object_weight: float = 4.0  # of the codes of objects, falls to 1
    guided_share: float = 0.7  # share of the steps of a run over which both weights fall
    seed: int = 0

    def guided(self, step: int) -> float:
        """Return the weight of heads and objects at a step, in 0..1."""
        return max(1 - self.fraction(step, self.guided_share), 0.0)

    def new_model(
        self, projection: nn.Module | None, heads: Mapping[str, int] = HEADS, objects: int = CLASSES
    ) -> WithAuxiliaryHeads:
        torch.manual_seed(self.seed)
        gpt = Transformer(self.config)
        if projection is not None:
            gpt.cls_embedding.cap_proj.load_state_dict(projection.state_dict())
        return WithAuxiliaryHeads(gpt, heads, objects)


def code_loss(logits: Tensor, codes: Tensor, weight: Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
    """Return the cross-entropy of codes int64 [B, T] under logits [B, T, V], and their mean top-1 probability; `weight`
    is [B, T]."""
    logits = logits.float().flatten(0, 1)
    each = F.cross_entropy(logits, codes.flatten(), reduction="none")
    loss = each.mean() if weight is None else (each * weight.flatten()).sum() / weight.sum()
    with torch.no_grad():
        top1 = (logits.amax(-1) - logits.logsumexp(-1)).exp().mean()
    return loss, {"top1": float(top1)}
