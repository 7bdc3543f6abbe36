"""Sizes of an EAGLE-3 drafter, and the levels of a target that it reads."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.drafting.layer import LayerConfig


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
