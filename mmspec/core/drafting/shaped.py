"""Drafters that draft in one of several shapes."""

from __future__ import annotations

import copy
from typing import Self

from mmspec.core.drafting.shapes import Shape


class Shaped:
    """Mixin of drafters whose drafts are grown level by level (`grow.py`). shapes: of greedy and of sampled requests."""

    shapes: tuple[Shape, Shape]

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        """The same weights drafting in another shape; `sampled` where sampled requests should get one of their own."""
        other = copy.copy(self)
        other.shapes = (shape, sampled or shape)
        return other

    def shape_for(self, greedy: bool) -> Shape:
        """The shape a request gets."""
        return self.shapes[0 if greedy else 1]
