"""Trained drafters that step through a draft in one of several shapes."""

from __future__ import annotations

from torch import Tensor

from mmspec.core.drafting.shaped import Shaped
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.prediction import Prediction
from mmspec.vlm.drafters.pretrained import PretrainedDrafter


class ShapedDrafter(Shaped, PretrainedDrafter):
    """Base of drafters whose drafts are grown level by level, with the shapes requests get: without `with_shape`, greedy
    ones a dynamic tree and sampled ones a static tree drawn without replacement.

    levels: which of the target's states it reads: None for the last ones, else indices of the decoder layers they enter.
    """

    levels: tuple[int, ...] | None = None

    @property
    def own_depths(self) -> int:
        """Depths of a draft that have weights of their own, which nothing but training at that depth ever reaches."""
        return 1

    def __init__(self, config: object):
        super().__init__(config)
        self.shapes = (DynamicTree(), StaticTree())

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
