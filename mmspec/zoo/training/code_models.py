"""What trainings of LlamaGens share: their recipe, auxiliary heads, and the loss of codes.

A small LlamaGen learns textures for thousands of steps before it learns which objects a prompt names: an object's color and
shape are a few bits of a picture of 256 uncertain codes. Auxiliary heads, which are dropped after training, teach these first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.zoo.architectures.caption_encoder import HEADS
from mmspec.zoo.training.loop import ZooRecipe
from mmspec.zoo.world.image import CLASSES

DROP = 0.1  # rows whose condition is replaced by the null one, for guidance


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


@dataclass(frozen=True, slots=True)
class CodeRecipe(ZooRecipe):
    """What decides a LlamaGen of the zoo.

    reading, object_weight: weights of the auxiliary heads' loss and of the codes of objects. Both fade, to 0 and 1, over
    `guided_share` of the steps of a run, so that what is learnt in the end is the law of the codes.
    """

    weight_decay = 0.05
    name: str
    config: GPTConfig
    steps: int
    lr: float = 2e-3
    batch: int = 16
    reading: float = 0.3
    object_weight: float = 4.0
    guided_share: float = 0.7
    seed: int = 0

    def guided(self, step: int) -> float:
        """How much heads and the weight of objects count at a step."""
        return max(1 - self.fraction(step, self.guided_share), 0.0)

    def new_model(
        self, projection: nn.Module | None, heads: Mapping[str, int] = HEADS, objects: int = CLASSES
    ) -> WithAuxiliaryHeads:
        """The untrained transformer with its heads.   projection: initial weights of its own caption projection."""
        torch.manual_seed(self.seed)
        gpt = Transformer(self.config)
        if projection is not None:
            gpt.cls_embedding.cap_proj.load_state_dict(projection.state_dict())
        return WithAuxiliaryHeads(gpt, heads, objects)


def code_loss(logits: Tensor, codes: Tensor, weight: Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of codes int64 [B, T], each with its weight [B, T], and the mean top-1 probability."""
    logits = logits.float().flatten(0, 1)
    each = F.cross_entropy(logits, codes.flatten(), reduction="none")
    loss = each.mean() if weight is None else (each * weight.flatten()).sum() / weight.sum()
    with torch.no_grad():
        top1 = (logits.amax(-1) - logits.logsumexp(-1)).exp().mean()
    return loss, {"top1": float(top1)}
