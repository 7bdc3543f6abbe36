"""The sizes of an EAGLE-3 drafter, and the levels of a target that it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmspec.core.drafting.layer import LayerConfig
from mmspec.io.validation import Count, Size, check_fields


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The sizes of an EAGLE-3 drafter, and the options of drafters that the `speculators` library trains. `levels` are
    the decoder layers whose inputs are read, in order, see `levels_of`: v is transformers' hidden_states[v]. The number
    of layers stands for the output of the last layer, in front of the final norm."""

    hidden_size: int  # the target's, unless `target_hidden_size` is set
    intermediate_size: int
    num_attention_heads: int
    vocab_size: Size  # the target's
    levels: tuple[int, ...]
    draft_vocab_size: Count = 0  # the tokens that it can draft, 0 for all
    num_key_value_heads: int = 0  # 0 for as many as queries have
    head_dim: int = 0  # 0 for hidden_size / num_attention_heads
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    norm_before_residual: bool = False  # whether the residual starts from the normed state
    tied_head: bool = False  # whether the head has the target's own rows, which are neither trained nor saved
    rope_scaling: dict[str, Any] = field(default_factory=dict)  # see `check_scaling`
    num_hidden_layers: Size = 1  # those behind the first are ordinary layers
    windows: tuple[int, ...] = ()  # the positions that each layer's query sees, with its own, 0 for all; empty is all 0
    qk_norm: bool = False  # per head, as in Qwen3
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_before_fc: bool = False  # whether the joined levels are normed by a single norm
    fc_norm: bool = False  # whether each level has its own norm before they are joined
    norm_output: bool = False  # whether the drafter reads its own outputs after the final norm
    own_embedding: bool = False  # whether it embeds text with its own rows instead of the target's
    target_hidden_size: int = 0  # the width of the target's states where it is not `hidden_size`, else 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))  # a list when read from a file
        object.__setattr__(self, "windows", tuple(self.windows) or (0,) * self.num_hidden_layers)
        check_fields(self)
        if len(self.levels) < 2 or min(self.levels) < 0:
            raise ValueError(f"levels: expected at least two layers of the target, got {self.levels}")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"draft_vocab_size: expected 0 to vocab_size {self.vocab_size}, got {self.draft_vocab_size}"
            )
        if len(self.windows) != self.num_hidden_layers:
            raise ValueError(f"windows: expected {self.num_hidden_layers}, one of each layer, got {self.windows}")
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
        return self.target_hidden_size or self.hidden_size

    @property
    def drafted(self) -> int:
        return self.draft_vocab_size or self.vocab_size

    def layer(self) -> LayerConfig:
        return self.layers()[0]

    def layers(self) -> tuple[LayerConfig, ...]:
        biases = dict(qkv_bias=self.attention_bias, out_bias=self.attention_bias)
        first = LayerConfig.of(self, read_size=2 * self.hidden_size, window=self.windows[0], **biases)
        rest = (LayerConfig.of(self, norms_input=True, window=window, **biases) for window in self.windows[1:])
        return (first, *rest)


def levels_of(layers: int) -> tuple[int, int, int]:
    """Return the levels of the public code, for a target with `layers` layers: 2, the middle and the last but two.
    Below 7 layers, where they would meet, they are spread evenly."""
    if layers >= 7:
        return 2, layers // 2, layers - 3
    return (layers - 1) // 3, 2 * (layers - 1) // 3, layers - 1
