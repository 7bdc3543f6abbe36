from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isqrt
from typing import Any, Literal

from mmspec.imagegen.grid_rope import check_rotary_pairs
from mmspec.io.validation import Size, check_fields, from_fields

# layers, heads, width of the published sizes
_SIZES = {
    "B": (12, 12, 768),
    "L": (24, 16, 1024),
    "XL": (36, 20, 1280),
    "XXL": (48, 24, 1536),
    "XXXL": (48, 40, 2560),
    "1B": (22, 32, 2048),
    "3B": (24, 32, 3200),
    "7B": (32, 32, 4096),
}

_MOST_TOKENS = 1 << 20  # no weight shows whether block_size is right, and position tables grow with it

# fields of the published config that only its training code reads
_TRAINING = ("initializer_range", "token_dropout_p", "attn_dropout_p", "resid_dropout_p", "ffn_dropout_p",
             "drop_path_rate", "max_batch_size", "max_seq_len")  # fmt: skip


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """The sizes of a LlamaGen transformer under their published names."""

    dim: Size = 4096
    n_layer: Size = 32
    n_head: Size = 32
    n_kv_head: int | None = None  # None for n_head
    multiple_of: Size = 256  # see `hidden`
    ffn_dim_multiplier: float | None = None  # see `hidden`
    rope_base: float = 10000
    norm_eps: float = 1e-5
    num_classes: Size = 1000
    caption_dim: Size = 2048
    class_dropout_prob: float = 0.1  # of training; at 0 the class table has no row for no class
    model_type: Literal["c2i", "t2i"] = "c2i"  # "c2i" for class labels, "t2i" for caption features
    vocab_size: Size = 16384
    cls_token_num: Size = 1  # the length of the prefix
    block_size: Size = 256  # image tokens, a square: no weight depends on it, so it must be the trained number
    ffn: int | None = None  # hidden width of the SwiGLU where the two factors do not give it
    frames: Size = 1  # of a video, block_size tokens each; our extension, 1 in every published model
    time_pairs: int = 0  # rotary pairs of each head that turn with the frame, see `rotary_angles`

    def __post_init__(self) -> None:
        check_fields(self)
        if self.hidden < 1:
            raise ValueError(
                f"ffn: expected a width inside the SwiGLU of at least 1, got {self.hidden}; correct ffn or "
                "ffn_dim_multiplier"
            )
        if self.dim % self.n_head:
            raise ValueError(f"dim: expected a multiple of n_head {self.n_head}, got {self.dim}; change dim or n_head")
        check_rotary_pairs("dim", self.head_dim, self.time_pairs)
        if self.frames > 1 and not self.time_pairs:
            raise ValueError(
                f"time_pairs: expected 1 or more for {self.frames} frames, to tell them apart, got 0; set time_pairs"
            )
        if self.kv_heads < 1 or self.n_head % self.kv_heads:
            raise ValueError(f"n_kv_head: expected a divisor of n_head {self.n_head}, got {self.n_kv_head}; change one")
        if self.model_type == "c2i" and self.cls_token_num != 1:
            raise ValueError(
                f"cls_token_num: expected 1 for a class, got {self.cls_token_num}; use 1 or model_type 't2i'"
            )
        if self.frames * self.block_size > _MOST_TOKENS:
            raise ValueError(
                f"block_size: expected at most {_MOST_TOKENS} tokens in all frames, got "
                f"{self.frames * self.block_size}; correct it"
            )
        if self.grid**2 != self.block_size:
            raise ValueError(
                f"block_size: expected a square, the tokens of a square image, got {self.block_size}; give "
                "(image side / pixels per token) squared"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_head

    @property
    def kv_heads(self) -> int:
        return self.n_head if self.n_kv_head is None else self.n_kv_head

    @property
    def null_class(self) -> bool:
        return self.class_dropout_prob > 0

    @property
    def hidden(self) -> int:
        """Hidden width of the SwiGLU: 8/3 of dim, times the multiplier, rounded up to a multiple of `multiple_of`."""
        if self.ffn is not None:
            return self.ffn
        width = int(8 * self.dim / 3)
        if self.ffn_dim_multiplier is not None:
            width = int(self.ffn_dim_multiplier * width)
        return -(-width // self.multiple_of) * self.multiple_of

    @property
    def grid(self) -> int:
        return isqrt(self.block_size)

    @classmethod
    def of(cls, config: GPTConfig | Mapping[str, Any]) -> GPTConfig:
        """Return the config of a mapping of published field names; fields that only training reads are ignored."""
        return from_fields(cls, config, _TRAINING, "a LlamaGen transformer")

    @classmethod
    def preset(cls, name: str, **other: Any) -> GPTConfig:
        """Return a published size (B, L, XL, XXL, XXXL, 1B, 3B, 7B; also "GPT-B"); "t2i" gets a prefix of 120 tokens."""
        key = name.removeprefix("GPT-")
        if key not in _SIZES:
            raise ValueError(f"name: expected one of {', '.join(_SIZES)}, got {name!r}; use one of these")
        layers, heads, dim = _SIZES[key]
        if other.get("model_type") == "t2i":
            other.setdefault("cls_token_num", 120)
        return cls(**{"n_layer": layers, "n_head": heads, "dim": dim, **other})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
