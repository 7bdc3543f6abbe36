"""The root of trained drafters of text tokens."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import nn

from mmspec.core.drafting.pretrained import Pretrained
from mmspec.vlm.architectures import Parts, take_apart
from mmspec.vlm.unwrapping import unwrapped


class PretrainedDrafter(Pretrained):
    """Base of trained drafters of text tokens; `kinds` lists them."""

    kinds: ClassVar[dict[str, type[Pretrained]]] = {}

    def check(self, parts: Parts) -> None:
        """Raises ValueError when the drafter was made for another target."""
        raise NotImplementedError

    def fitted(self, target: nn.Module) -> Self:
        """Itself, checked against a model, adapters around it or not, and moved to the model's device and dtype."""
        parts = take_apart(unwrapped(target))
        self.check(parts)
        return self.to(device=parts.device, dtype=parts.dtype)
