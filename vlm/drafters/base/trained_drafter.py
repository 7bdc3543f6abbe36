"""Base of drafters that grow drafts level by level, their predictions in training, and the weights of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.request_shape import ShapeMixin, shape_of
from mmspec.core.drafting.shapes import Chain, Shape, StaticTree
from mmspec.methods import MethodParts, value_of
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.pretrained_drafter import PretrainedDrafter, weights_of
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.published import vocabulary_fits
from mmspec.vlm.hidden_states import Level


class ShapedDrafter(ShapeMixin, PretrainedDrafter):
    """Base of drafters whose drafts grow level by level, in a shape per request. Without `with_shape`, greedy requests
    get a dynamic tree, and sampled requests a static tree drawn without replacement. `texts_first` are the shares of
    training until which texts come alone, and after which pictures do, None for a mixture throughout."""

    own_depths: int = 1  # depths with their own weights, which only training at that depth reaches
    levels: tuple[Level, ...] | None = None  # the target's states that are read: None for the last, else see `watch`
    trainable: ClassVar[bool] = True
    predicts_states: ClassVar[bool] = True  # whether training compares the predicted states too, not only the tokens
    texts_first: ClassVar[tuple[float, float] | None] = None  # shares of training, see `Curriculum`
    padded_vocabulary: ClassVar[bool] = False  # if no weight has a row for a token: the target may have more rows

    @classmethod
    def make(cls, settings: dict[str, Any], parts: MethodParts) -> Self:
        """Return a drafter of this kind with the available weights, in the shape of the settings, see `shape_of`."""
        drafter = weights_of(cls, parts)
        nested = {"length": "controller", "shape": "shape"}
        built = {name: value_of(settings.get(name), "vlm", kind, parts) for name, kind in nested.items()}
        shape = shape_of(**{**settings, **built})
        return drafter if shape is None else drafter.with_shape(shape)

    # of a draft: one pass per level, block or head; layers like the target's; states joined at the input
    steps: ClassVar[tuple[str, int, int]] = ("levels", 1, 2)

    @classmethod
    def method_facts(cls) -> dict[str, Any]:
        """Add the forms of drafts, see `mmspec supported`, unless the drafter belongs to one family of models."""
        drafts = {"drafts": ["dynamic tree", "sampled tree", "sampled chain"]} if cls.any_target else {}
        return super().method_facts() | drafts

    def with_shape(self, shape: Shape, sampled: Shape | None = None) -> Self:
        """See `ShapeMixin.with_shape`; dynamic trees are cut to the drafter's levels, and chains end there."""
        return super().with_shape(self._cut(shape), None if sampled is None else self._cut(sampled))

    def _cut(self, shape: Shape) -> Shape:
        most = self.trained_depth
        if most is None or isinstance(shape, Chain) or shape.longest <= most:
            return shape  # requests end chains themselves, so length controls keep their settings
        if isinstance(shape, StaticTree):
            raise ValueError(
                f"shape: expected a static tree of at most {most} levels, as many as {self.name} drafts, got "
                f"{shape.longest}; cut the tree or train a drafter with more levels"
            )
        return shape.cut(most)

    def open(self, target: object) -> object:
        """Return the state of a request over a TextTarget, after reading the prompt."""
        state = self.open_without_prefill(target)
        state.prefill()
        return state

    def open_without_prefill(self, target: object) -> object:
        """Return the state of a request whose prompt is read before the first draft."""
        self.check(target.parts)
        self.share(target.parts)
        return self.new_state(target)

    def share(self, parts: Parts) -> None:
        """Take the target's weights that the drafter does not store, unless it already has them."""

    def new_state(self, target: object) -> object:
        """Return the state of a request over a target that fits."""
        raise NotImplementedError

    @property
    def teacher_levels(self) -> tuple[Level, ...] | None:
        """The target's states that training reads; here those that drafting reads."""
        return self.levels

    @property
    def most_shift(self) -> int:
        """The largest position to which training moves tokens, see `shifted_positions`; 0 moves none."""
        return 0

    @property
    def vocabulary(self) -> Tensor | None:
        """The tokens that are scored in training, rising ids int64 [k]; None for all."""
        return None

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """Return the prediction that training compares with the target at n places of a depth, from 0. Outputs of
        `unroll` and the target's states are [n, H], and `teacher`, float32 [n, k], has scores of the tokens in
        `vocabulary`. `token`, int64 [n], are columns of the tokens that follow, -100 outside of `vocabulary`."""
        student = self.logits(out, depth + 1, parts.head)
        return DraftPrediction(student, teacher, token, depth, out, truth)

    def embeddings(self, ids: Tensor, parts: Parts) -> Tensor:
        """Return the embeddings of text, float [B, n, H], of ids int64 [B, n]."""
        return parts.embed(ids)

    def embedded(self, view: PromptView, ids: Tensor) -> PromptView:
        """Return the view of a prompt, ids int64 [B, P], with text embedded as the drafter does; here as the target."""
        return view

    def own_logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        """Return `logits` of the tokens in `vocabulary` alone, float32 [..., k]."""
        return self.logits(out, depth, head)

    def check(self, parts: Parts) -> None:
        self.check_sizes(parts, "hidden_size", "train a drafter for this target")

    def check_sizes(self, parts: Parts, width: str, advice: str) -> None:
        """Compare the config's field `width` and its vocabulary with the target's; `advice` ends the error."""
        for field, theirs in ((width, parts.hidden_size), ("vocab_size", parts.vocab_size)):
            own = getattr(self.config, field)
            padded = field == "vocab_size" and self.padded_vocabulary and vocabulary_fits(own, theirs)
            if own != theirs and not padded:
                if field == "vocab_size" and vocabulary_fits(own, theirs):
                    advice = "load it with this target, whose unused rows are then left out"
                raise ValueError(f"drafter: expected {field} {theirs} as in the target, got {own}; {advice}")


@dataclass(slots=True)
class DraftPrediction:
    """The predictions of a drafter at n places of one depth, and the target's values there."""

    student: Tensor  # float32 [n, V], log-weights of the next token, over the drafter's own vocabulary
    teacher: Tensor  # as `student`
    token: Tensor  # int64 [n], the token that follows in the text, as an index of V
    depth: int  # from 0
    feature: Tensor | None = None  # float [n, H], the predicted hidden state; None where none is predicted
    truth: Tensor | None = None  # float [n, H]

    def at(self, places: Tensor) -> Self:
        """Return the prediction at some of its places, int64 [n]."""
        feature = None if self.feature is None else self.feature[places]
        truth = None if self.truth is None else self.truth[places]
        student, teacher, token = self.student[places], self.teacher[places], self.token[places]
        return DraftPrediction(student, teacher, token, self.depth, feature, truth)


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """The map cap * tanh(scale * logits / cap) of logits, without the tanh for `cap` 0. It keeps the best token."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def of(cls, parts: Parts) -> Self:
        """Return the target's transform, from the config fields of Gemma, Cohere, Granite and Muse Glimmer."""
        config = parts.model.config.get_text_config(decoder=True)
        scale = (getattr(config, "logit_scale", None) or 1.0) * (getattr(config, "output_multiplier", None) or 1.0)
        scale /= getattr(config, "logits_scaling", None) or 1.0
        return cls(float(scale), float(getattr(config, "final_logit_softcapping", None) or 0.0))

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits * self.scale if self.scale != 1 else logits
        return (scaled / self.cap).tanh() * self.cap if self.cap else scaled


def shared_embedding(embed: nn.Module, ids: Tensor) -> Tensor:
    """Return the embeddings [B, n, H] of ids int64 [B, n], as drafters that share the target's table read them. Muse
    Glimmer's embedding norms the rows that it looks up, but its assistant reads the rows of the table. Changes by other
    embeddings, such as Gemma's scaling, are part of a row."""
    return F.embedding(ids, embed.weight) if hasattr(embed, "embed_norm") else embed(ids)
