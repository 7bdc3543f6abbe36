"""Non-raster orders: what decodings have in common that fill the canvas in another order than raster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from mmspec.core.rules.base import Rule
from mmspec.imagegen.canvas import CanvasTarget
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.target import ImageTarget


class NonRasterOrder(ABC):
    """A drafter with an order of its own. Relaxed: it brings the target that keeps such a canvas, and the rule it falls
    under."""

    __slots__ = ()
    target: ClassVar[type[ImageTarget]] = CanvasTarget

    @abstractmethod
    def rule(self, model: ImageModel) -> Rule:
        """The rule that judges its drafts on `model`."""
