"""Sizes of a Wan transformer, under the field names of diffusers or of the causal checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mmspec.io.validation import Size, check_fields, check_types, from_fields

# field of a causal checkpoint's config -> our field, which is that of diffusers
_UPSTREAM = {"num_heads": "num_attention_heads", "in_dim": "in_channels", "out_dim": "out_channels"}
_UPSTREAM_ONLY = ("dim", "model_type", "window_size", *_UPSTREAM)
# diffusers' fields of image-to-video models; `rope_max_seq_len` is the size of a table that is not stored here
_IMAGE = ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len")
_LEFT_OUT = ("rope_max_seq_len", *_IMAGE)
_PUBLISHED = (1536, 3072, 5120)  # widths of the published models, whose heads have 128 channels
_QK_NORM = "rms_norm_across_heads"


@dataclass(frozen=True, slots=True)
class WanConfig:
    """The sizes of a Wan transformer; its width is num_attention_heads x attention_head_dim.

    Args:
        num_attention_heads: The number of heads.
        attention_head_dim: The channels of a head.
        ffn_dim: The width of the feed-forward layers.
        num_layers: The number of layers.
        in_channels: The channels of a latent.
        out_channels: The same number.
        text_dim: The width of the text encoder's states.
        freq_dim: The width of the timestep sinusoid.
        patch_size: Frames, rows and columns of a token.
        cross_attn_norm: Whether there is a norm before cross-attention.
        qk_norm: The norm of queries and keys; only "rms_norm_across_heads" is supported.
        eps: The epsilon of the norms.
        text_len: The length to which text is padded with zeros, which are attended to; None for no padding.
        local_attn_size: The default number of visible frames in requests, -1 for all.
        sink_size: The default number of first frames that are always visible.
        gate_value: The share of the embedding of a step's end, for flow maps (AnyFlow); None without that embedding.
        deltatime_type: "r" embeds the end of the step, "t-r" its length.

    Raises:
        ValueError: The sizes do not fit together.
    """

    num_attention_heads: Size = 12
    attention_head_dim: int = 128
    ffn_dim: Size = 8960
    num_layers: Size = 30
    in_channels: Size = 16
    out_channels: Size = 16
    text_dim: Size = 4096
    freq_dim: int = 256
    patch_size: tuple[int, ...] = (1, 2, 2)
    cross_attn_norm: bool = True
    qk_norm: str = _QK_NORM
    eps: float = 1e-6
    text_len: int | None = None
    local_attn_size: int = -1
    sink_size: int = 0
    gate_value: float | None = None
    deltatime_type: Literal["r", "t-r"] = "r"

    def __post_init__(self) -> None:
        object.__setattr__(self, "patch_size", tuple(self.patch_size))
        check_fields(self)
        if self.attention_head_dim < 6 or self.attention_head_dim % 2:
            raise ValueError(
                f"attention_head_dim: expected an even number of at least 6, a pair for each of time, rows and "
                f"columns, got {self.attention_head_dim}; correct it"
            )
        if self.freq_dim < 2 or self.freq_dim % 2:
            raise ValueError(f"freq_dim: expected an even number of at least 2, got {self.freq_dim}; correct it")
        if len(self.patch_size) != 3 or self.patch_size[0] != 1 or min(self.patch_size) < 1:
            raise ValueError(
                f"patch_size: expected (1, rows, columns), since a token must not span several frames, got "
                f"{self.patch_size}; use a model with such patches"
            )
        if self.qk_norm != _QK_NORM:
            raise ValueError(f"qk_norm: expected {_QK_NORM!r}, got {self.qk_norm!r}; use a Wan model with that norm")
        if self.out_channels != self.in_channels:
            raise ValueError(
                f"out_channels: expected {self.in_channels}, as many as in_channels, got {self.out_channels}; "
                "use a model with as many output channels"
            )

    @property
    def dim(self) -> int:
        """The width of the transformer."""
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def of(cls, config: WanConfig | Mapping[str, Any]) -> WanConfig:
        """Return the config of a mapping under the field names of diffusers or of the causal checkpoints."""
        if isinstance(config, cls):
            return config
        return from_fields(cls, own_names(config), _LEFT_OUT, "a Wan transformer")

    def to_dict(self) -> dict[str, Any]:
        """Return every field in the form that `of` reads."""
        return asdict(self) | {"patch_size": list(self.patch_size)}


def own_names(config: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in config.items() if not name.startswith("_")}  # without the class name
    if foreign := [name for name in _IMAGE if values.get(name) is not None]:
        raise ValueError(
            f"{foreign[0]}: expected None, since only text-to-video models are supported, got "
            f"{values[foreign[0]]!r}; use a text-to-video checkpoint"
        )
    if not any(name in values for name in _UPSTREAM_ONLY):
        return values
    if (kind := values.pop("model_type", "t2v")) != "t2v":
        raise ValueError(
            f"model_type: expected 't2v', since only text-to-video models are supported, got {kind!r}; use such "
            "a checkpoint"
        )
    if (norm := values.pop("qk_norm", True)) not in (True, _QK_NORM):
        raise ValueError(f"qk_norm: expected true, got {norm!r}; use a Wan model with normalised queries and keys")
    renamed = {_UPSTREAM.get(name, name): value for name, value in values.items()} | {"qk_norm": _QK_NORM}
    renamed.setdefault("text_len", 512)
    for name in ("head_dim", "window_size"):  # dim / num_heads, and always the whole sequence
        renamed.pop(name, None)
    if (dim := renamed.pop("dim", None)) is not None:
        check_types(WanConfig, {"dim": dim}, {"dim": "ffn_dim"})
        if "num_attention_heads" not in renamed:
            renamed["num_attention_heads"] = heads_of(dim)
        heads = renamed["num_attention_heads"]
        if not isinstance(heads, int) or heads < 1 or dim % heads:
            raise ValueError(f"dim: expected a multiple of num_heads {heads!r}, got {dim}; correct one of them")
        renamed["attention_head_dim"] = dim // heads
    return renamed


def heads_of(width: int) -> int:
    if width not in _PUBLISHED:
        raise ValueError(
            f"num_heads: expected it in the config, since a width of {width} does not determine it, got none; add it"
        )
    return width // WanConfig().attention_head_dim
