"""EAGLE-3's drafter: one wide decoder layer over three levels of the target, its own head over part of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer, LayerConfig, rms_norm
from mmspec.core.drafting.shapes import shape_of
from mmspec.methods import method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureDrafter
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction, ShapedDrafter
from mmspec.vlm.drafters.reduced_vocabulary import ReducedHead, reduced_vocabulary
from mmspec.vlm.hf_model import unwrapped

MOST_DRAFT_TOKENS = 32000  # the public drafters' reduced vocabulary


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes of an EAGLE-3 drafter; hidden_size and vocab_size are the target's.

    levels: which decoder layers' inputs are read, in order, see `levels_of`; index v is transformers' hidden_states[v].
    draft_vocab_size: tokens it can draft, 0 for all.   num_key_value_heads, head_dim: 0 for the usual.
    norm_before_residual: whether the residual starts from the normed state (some drafters trained with `speculators` do)
        instead of the state itself.
    tied_head: whether the head has the target's own rows, which are neither trained nor saved.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    levels: tuple[int, ...]
    draft_vocab_size: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    norm_before_residual: bool = False
    tied_head: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # a list where it comes from a file
        if len(self.levels) < 2 or min(self.levels) < 0:
            raise ValueError(f"levels: expected at least two layers of the target, got {self.levels}")
        if not 0 <= self.draft_vocab_size <= self.vocab_size or self.vocab_size < 1:
            raise ValueError(
                f"draft_vocab_size: expected 0 to vocab_size {self.vocab_size}, got {self.draft_vocab_size}"
            )
        self.layer()

    @property
    def drafted(self) -> int:
        """How many tokens it can draft."""
        return self.draft_vocab_size or self.vocab_size

    def layer(self) -> LayerConfig:
        """The sizes of the decoder layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self, read_size=2 * self.hidden_size)


def levels_of(layers: int) -> tuple[int, int, int]:
    """The three levels read of a target of so many layers: 2, the middle and the last but two, as in the public code.

    Below 7 layers, where these would meet, they are spread evenly.
    """
    if layers >= 7:
        return 2, layers // 2, layers - 3
    return (layers - 1) // 3, 2 * (layers - 1) // 3, layers - 1


@method(
    "eagle3", domain="vlm", kind="drafter", title="EAGLE-3", exact=True, needs=("weights",), takes=shape_of, order=6,
    about="a layer over three levels of the target's states",
    paper="EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
)  # fmt: skip
class Eagle3(FeatureDrafter):
    """Drafts from low, middle and high states of the target ("EAGLE-3: Scaling up Inference Acceleration of Large Language
    Models via Training-Time Test"). Exact in every shape.

    One linear layer joins the states to the target's width; the drafter's own outputs skip it. Attention reads [normed
    embedding ; normed state], and the residual is the state. The drafter's own head scores a reduced vocabulary; other tokens
    are never drafted. docs/concepts/drafters.md describes its training and its differences from the public code.
    """

    kind: ClassVar[str] = "eagle3"
    config_class = Eagle3Config
    name = "eagle3"
    config: Eagle3Config

    def __init__(self, config: Eagle3Config):
        ShapedDrafter.__init__(self, config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.levels = config.levels
        self.fc = nn.Linear(len(config.levels) * width, width, bias=False)
        self.embed_norm = nn.RMSNorm(width, eps=eps)
        self.state_norm = nn.RMSNorm(width, eps=eps)
        self.layer = DraftLayer(config.layer())
        self.norm = nn.RMSNorm(width, eps=eps)
        self.head = ReducedHead(width, config.vocab_size, config.drafted, config.tied_head)
        self._start: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def start_from(self, parts: Parts) -> Self:
        """Begins training with the target's head and final norm; returns the drafter itself.

        A vocabulary chosen afterwards starts from the target's rows too.
        """
        rows = parts.head.weight
        if self.head.tied:
            self.head.tie(rows)
        else:
            self.head.weight.copy_(self.head.rows_of(rows))
        self._start = (rows,)  # in a tuple: not a weight of the drafter
        norm = getattr(getattr(parts.decoder, "norm", None), "weight", None)
        if norm is not None:
            self.norm.weight.copy_(norm)
        return self

    @torch.no_grad()
    def with_vocabulary(self, ids: Sequence[int]) -> Self:
        """A drafter of these tokens only (rising ids), with this one's weights.

        Rows of the head are this drafter's where it has them, else those it was to start from (`start_from`), else new.
        Raises ValueError for ids that do not rise or are no tokens.
        """
        size = 0 if len(ids) == self.config.vocab_size else len(ids)
        other = type(self)(replace(self.config, draft_vocab_size=size))
        other.to(device=self.fc.weight.device, dtype=self.fc.weight.dtype).train(self.training)
        other.shapes = self.shapes
        if other.head.reduced:
            other.head.choose(ids)
        own = {name: value for name, value in self.state_dict().items() if not name.startswith("head.")}
        other.load_state_dict(own, strict=False)
        other._start = self._start
        if other.head.tied:
            for rows in self._start:
                other.head.tie(rows)
        else:
            self._copy_rows(other.head)
        return other.requires_grad_(self.fc.weight.requires_grad)

    def _copy_rows(self, head: ReducedHead) -> None:
        """Fill a head with this drafter's rows, or with those it was to start from."""
        tokens, known = head.tokens, self.head.tokens
        for rows in self._start:
            head.weight.copy_(head.rows_of(rows))
        row = torch.full((self.config.vocab_size,), -1, device=known.device)
        row[known] = torch.arange(len(known), device=known.device)
        row = row[tokens, None]
        own = self.head.weight[row[:, 0].clamp(min=0)]
        head.weight.copy_(torch.where(row >= 0, own, head.weight))

    def with_answers(
        self, answers: Iterable[Sequence[int]], most: int = 0, always: Iterable[int] = (), never: Iterable[int] = ()
    ) -> Self:
        """`with_vocabulary` of the answers' most frequent tokens, see `reduced_vocabulary`.

        most: the number of tokens; 0 for the config's draft_vocab_size, or 32000 where it has none.
        """
        vocab = self.config.vocab_size
        most = min(most or self.config.draft_vocab_size or MOST_DRAFT_TOKENS, vocab)
        return self.with_vocabulary(reduced_vocabulary(answers, vocab, most, always, never))

    def check(self, parts: Parts) -> None:
        FeatureDrafter.check(self, parts)
        if (highest := max(self.levels)) > parts.layers:
            raise ValueError(
                f"levels: expected layers 0 to {parts.layers} of the target, got {highest}; train one for this target"
            )

    def share(self, parts: Parts) -> None:
        if self.head.tied and self.head.weight is None:
            self.head.tie(parts.head.weight)

    def fitted(self, target: nn.Module) -> Self:
        drafter = super().fitted(target)
        drafter.share(take_apart(unwrapped(target)))
        return drafter

    def read(self, view: PromptView) -> PromptSlots:
        """Every pair a slot.   Raises ValueError where the states are not the drafter's levels."""
        width = len(self.levels) * self.config.hidden_size
        if view.hidden.shape[-1] != width:
            raise ValueError(f"hidden: expected the states of levels {self.levels} side by side, width {width}, got width "
                             f"{view.hidden.shape[-1]}; ask the target for the drafter's `levels`")  # fmt: skip
        return FeatureDrafter.read(self, view)

    def fuse(self, embeds: Tensor, hidden: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What attention reads [B, n, 2 H] and the residual [B, n, H], from next embeddings [B, n, H] and either the
        target's levels side by side [B, n, 3 H] or the drafter's own outputs [B, n, H]."""
        if hidden.shape[-1] != self.config.hidden_size:
            hidden = F.linear(hidden, self.fc.weight)
        state = rms_norm(self.state_norm, hidden)
        read = torch.cat([rms_norm(self.embed_norm, embeds), state], -1)
        return read, state if self.config.norm_before_residual else hidden

    def scores(self, out: Tensor) -> Tensor:
        """float32 [..., k] over the drafted tokens, of outputs [..., H]."""
        return self.head(rms_norm(self.norm, out))

    def own_logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return self.scores(out)

    def logits(self, out: Tensor, depth: int, head: nn.Module) -> Tensor:
        return self.head.spread(self.scores(out))

    @property
    def vocabulary(self) -> Tensor | None:
        return self.head.ids if self.head.reduced else None

    def prediction(
        self, out: Tensor, depth: int, parts: Parts, teacher: Tensor, token: Tensor, truth: Tensor
    ) -> DraftPrediction:
        """On the reduced vocabulary; no feature is compared."""
        return DraftPrediction(self.scores(out), teacher, token, depth)
