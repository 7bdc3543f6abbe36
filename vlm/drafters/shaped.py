"""Trained drafters that step through a draft in one of several shapes."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor

from mmspec.core.drafting.shaped import Shaped
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import Level
from mmspec.vlm.drafters.prediction import Prediction
from mmspec.vlm.drafters.pretrained import PretrainedDrafter


class ShapedDrafter(Shaped, PretrainedDrafter):
    """Base of drafters whose drafts are grown level by level, with the shapes requests get: without `with_shape`, greedy
    ones a dynamic tree and sampled ones a static tree drawn without replacement.

    levels: which of the target's states it reads: None for the last ones, else see `watch`.
    trainable: whether drafters of this kind are trained here; the others come from their publishers.
    any_target: whether they can be made for any target; the others belong to models of one family.
    """

    levels: tuple[Level, ...] | None = None
    trainable: ClassVar[bool] = True
    any_target: ClassVar[bool] = True

    @property
    def most_levels(self) -> int | None:
        """Levels a draft can have; None where the drafter sets no limit."""
        return None

    @property
    def own_depths(self) -> int:
        """Depths of a draft that have weights of their own, which nothing but training at that depth ever reaches."""
        return 1

    def __init__(self, config: object):
        super().__init__(config)
        self.shapes = (DynamicTree(), StaticTree())

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        """See `Shaped.with_shape`; dynamic trees are cut to the levels a draft can have, chains end there by themselves.

        Raises ValueError for a static tree with more levels.
        """
        return super().with_shape(self._cut(shape), None if sampled is None else self._cut(sampled))

    def _cut(self, shape: Shape) -> Shape:
        most = self.most_levels
        if most is None or isinstance(shape, Chain) or shape.longest <= most:
            return shape  # a request ends chains by itself, so that length control keeps its settings
        if isinstance(shape, StaticTree):
            raise ValueError(f"shape: expected a static tree of at most {most} levels, as many as {self.name} drafts, got "
                             f"{shape.longest}; cut the tree or train a drafter of more")  # fmt: skip
        return shape.cut(most)

    def open(self, target: object) -> object:
        """State of one request over a TextTarget; the prompt is read now."""
        state = self.open_without_prefill(target)
        state.prefill()
        return state

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> Prediction:
        """What training compares at n places of one depth (from 0).

        out: float [n, H], outputs of `unroll`.   teacher: float32 [n, V].   token: int64 [n].   truth: float [n, H].
        """
        student = self.logits(out, depth + 1, parts.head)
        return Prediction(student, teacher, token, depth, out, truth)

    def check(self, parts: Parts) -> None:
        """Raises ValueError when the drafter was made for another target."""
        for field, own, theirs in (
            ("hidden_size", self.config.hidden_size, parts.hidden_size),
            ("vocab_size", self.config.vocab_size, parts.vocab_size),
        ):
            if own != theirs:
                raise ValueError(
                    f"drafter: expected {field} {theirs} as in the target, got {own}; train one for this target"
                )
