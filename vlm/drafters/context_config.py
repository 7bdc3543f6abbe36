"""Sizes and conventions of drafters that read the target's states as context and draft a block in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.drafting.layer import LayerConfig

ALL = -1  # reach of a layer without a window


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """hidden_size is the drafter's own and the target's, whose embedding and head it uses; vocab_size the target's.

    taps: the target's layers whose outputs are read, counted from 0, in order.   target_hidden_size: their width, 0 for
        hidden_size.   mask_token_id: the row of the target's embedding that stands where a token is to be drafted.
    block_size: rows of a block, the root included.   from_root: a row predicts the token behind its own position, so that
        the root's row drafts too, instead of the token at it.
    draft_vocab_size: tokens it can draft with a head of its own, 0 for all with the target's.
    reach: per layer, how many positions back a row sees, ALL (-1) without a limit; () for ALL in every layer.
    reach_from_root: the limit counts from the root for all rows of a block, instead of from each row.
    causal: per layer, whether a row of a block sees none behind it; () for no layer.
    embedding_scale, output_multiplier, softcap: what embeddings are multiplied with, and what becomes of the head's logits:
        softcap * tanh(multiplier * logits / softcap), 0 for none.
    latents: rows that the context of a picture is pooled into, as FLASH pools states; 0 leaves it a row a token.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    taps: tuple[int, ...]
    mask_token_id: int
    block_size: int = 16
    num_hidden_layers: int = 1
    target_hidden_size: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    draft_vocab_size: int = 0
    from_root: bool = False
    reach: tuple[int, ...] = ()
    reach_from_root: bool = False
    causal: tuple[bool, ...] = ()
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float = 0.0
    latents: int = 0

    def __post_init__(self) -> None:
        layers = self.num_hidden_layers
        object.__setattr__(self, "taps", tuple(self.taps))  # lists where they come from a file
        object.__setattr__(self, "reach", tuple(self.reach) or (ALL,) * layers)
        object.__setattr__(self, "causal", tuple(self.causal) or (False,) * layers)
        if not self.taps or min(self.taps) < 0:
            raise ValueError(f"taps: expected at least one layer of the target, got {self.taps}")
        if layers < 1 or len(self.reach) != layers or len(self.causal) != layers:
            raise ValueError(
                f"reach, causal: expected one of each for {layers} layers, got {self.reach} and {self.causal}"
            )
        if min(self.reach) < ALL:
            raise ValueError(f"reach: expected positions to look back, or {ALL} for all, got {self.reach}")
        if self.latents < 0:
            raise ValueError(f"latents: expected rows a picture is pooled into, or 0 for its own, got {self.latents}")
        if self.drafted < 1:
            raise ValueError(f"block_size: expected rows that draft something, got {self.block_size}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id: expected a token below vocab_size {self.vocab_size}, got {self.mask_token_id}"
            )
        if not 0 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size: expected 0 to vocab_size {self.vocab_size}, got {self.draft_vocab_size}"
            )
        self.layer()

    @property
    def drafted(self) -> int:
        """Tokens of a block."""
        return self.block_size if self.from_root else self.block_size - 1

    @property
    def tapped(self) -> int:
        """Width of one state that is read."""
        return self.target_hidden_size or self.hidden_size

    def layer(self) -> LayerConfig:
        """The sizes of a layer.   Raises ValueError where they do not fit together."""
        return LayerConfig.of(self)
