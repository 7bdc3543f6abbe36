"""The sizes of an EAGLE-3 drafter, and the levels of a target that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmspec.core.drafting.layer import LayerConfig


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The sizes of an EAGLE-3 drafter, and the options of drafters that the `speculators` library trains.

    Attributes:
        hidden_size, vocab_size: The target's; a drafter with `target_hidden_size` has a width of its own.
        levels: The decoder layers whose inputs are read, in order, see `levels_of`: v is transformers'
            hidden_states[v]. The number of layers stands for the output of the last layer, in front of the final norm.
        draft_vocab_size: The number of tokens that it can draft, 0 for all.
        num_key_value_heads: The key-value heads, 0 for as many as queries have.
        head_dim: The width of a head, 0 for hidden_size / num_attention_heads.
        rope_scaling: The scaling of rotary positions, see `check_scaling`.
        norm_before_residual: Whether the residual starts from the normed state instead of the state itself.
        tied_head: Whether the head has the target's own rows, which are neither trained nor saved.
        num_hidden_layers: The number of layers; the layers behind the first are ordinary layers.
        windows: The positions that a query of each layer sees, its own included, 0 for all; empty for all in each
            layer.
        qk_norm: Whether queries and keys are normed per head, as in Qwen3.
        attention_bias, mlp_bias: Whether the projections of attention and of the MLP have biases.
        norm_before_fc: Whether the joined levels are normed by a single norm.
        fc_norm: Whether each level has its own norm before they are joined.
        norm_output: Whether the drafter reads its own outputs after the final norm.
        own_embedding: Whether it embeds text with its own rows instead of the target's.
        target_hidden_size: The width of the target's states where it is not `hidden_size`, else 0.
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
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    num_hidden_layers: int = 1
    windows: tuple[int, ...] = ()
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    target_hidden_size: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # a list when read from a file
        object.__setattr__(self, "windows", tuple(self.windows) or (0,) * self.num_hidden_layers)
        if len(self.levels) < 2 or min(self.levels) < 0:
            raise ValueError(f"levels: expected at least two layers of the target, got {self.levels}")
        if not 0 <= self.draft_vocab_size <= self.vocab_size or self.vocab_size < 1:
            raise ValueError(
                f"draft_vocab_size: expected 0 to vocab_size {self.vocab_size}, got {self.draft_vocab_size}"
            )
        if self.num_hidden_layers < 1 or len(self.windows) != self.num_hidden_layers:
            raise ValueError(f"windows: expected a window for each of at least 1 layer, got {self.windows} for "
                             f"{self.num_hidden_layers}")  # fmt: skip
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc: expected it or fc_norm, got both; leave one out")
        if self.tapped != self.hidden_size and (self.tied_head or not self.own_embedding):
            raise ValueError(
                f"target_hidden_size: expected hidden_size {self.hidden_size} for a drafter that uses the target's embedding "
                f"or head, got {self.target_hidden_size}"
            )
        if self.tapped * len(self.levels) == self.hidden_size:
            raise ValueError(f"hidden_size: expected another width than that of all levels, got {self.hidden_size}")
        self.layers()

    @property
    def tapped(self) -> int:
        """The width of a state that is read."""
        return self.target_hidden_size or self.hidden_size

    @property
    def drafted(self) -> int:
        """The number of tokens that it can draft."""
        return self.draft_vocab_size or self.vocab_size

    def layer(self) -> LayerConfig:
        """Return the sizes of the first decoder layer."""
        return self.layers()[0]

    def layers(self) -> tuple[LayerConfig, ...]:
        """Return the sizes of the decoder layers.

        Raises:
            ValueError: The sizes do not fit together.
        """
        biases = dict(qkv_bias=self.attention_bias, out_bias=self.attention_bias)
        first = LayerConfig.of(self, read_size=2 * self.hidden_size, window=self.windows[0], **biases)
        rest = (LayerConfig.of(self, norms_input=True, window=window, **biases) for window in self.windows[1:])
        return (first, *rest)


def levels_of(layers: int) -> tuple[int, int, int]:
    """Return the three levels read of a target with `layers` layers: 2, the middle and the last but two.

    These are the levels of the public code. Below 7 layers, where they would meet, they are spread evenly.
    """
    if layers >= 7:
        return 2, layers // 2, layers - 3
    return (layers - 1) // 3, 2 * (layers - 1) // 3, layers - 1
