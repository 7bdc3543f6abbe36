"""The encoder half of T5, which encodes captions. Importing transformers' models takes longer than generating an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import log, pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.imagegen.components import write_component
from mmspec.io.validation import from_fields

_TYPES = ("t5", "mt5")
_PROJECTIONS = ("relu", "gated-gelu")  # of T5 1.0, and of all later versions
_LARGEST = 64504.0  # large models overflow in float16


@dataclass(frozen=True, slots=True)
class T5Config:
    """The sizes of the encoder under their published names, as in transformers' `T5Config`."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}; use a positive size")
        buckets, far = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or far <= buckets // 4:
            raise ValueError(
                f"relative_attention_num_buckets: expected 4 or more, and a distance above a quarter of them, "
                f"got {buckets} and {far}; correct the config"
            )
        if self.feed_forward_proj not in _PROJECTIONS:
            raise ValueError(
                f"feed_forward_proj: expected one of {', '.join(_PROJECTIONS)}, got "
                f"{self.feed_forward_proj!r}; use a T5 with one of these"
            )

    @classmethod
    def of(cls, config: T5Config | Mapping[str, Any]) -> T5Config:
        """Return the config of a config of transformers; fields for the decoder and for training are ignored."""
        if isinstance(config, cls):
            return config
        kind, known = config.get("model_type", "t5"), {field.name for field in fields(cls)}
        if kind not in _TYPES:
            raise ValueError(
                f"model_type: expected {' or '.join(_TYPES)}, got {kind!r}; give the pipeline a CaptionEncoder "
                "of that model"
            )
        return from_fields(cls, {name: value for name, value in config.items() if name in known}, owner="a T5 encoder")

    def to_dict(self) -> dict[str, Any]:
        return {"architectures": ["T5EncoderModel"], "model_type": "t5", **asdict(self)}


class EncodedText(NamedTuple):
    last_hidden_state: Tensor  # float [B, P, d_model]


class T5Encoder(nn.Module):
    """The encoder of "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" under the
    published names. Attention is not scaled; all layers add the same table of distance biases."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.Module()
        self.encoder.block = nn.ModuleList(_T5Block(config, first=i == 0) for i in range(config.num_layers))
        self.encoder.final_layer_norm = _T5Norm(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> EncodedText:
        """Encode token ids int64 [B, P]; the mask [B, P] is nonzero at the visible tokens."""
        x = self.shared(input_ids)
        table = self.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
        buckets = position_buckets(input_ids.shape[1], self.config, x.device)
        distance = rearrange(table(buckets), "query key h -> h query key")
        bias = torch.where(attention_mask.bool()[:, None, None], distance, torch.finfo(x.dtype).min)
        for block in self.encoder.block:
            for part in block.layer:
                x = part(x, bias)
        return EncodedText(self.encoder.final_layer_norm(x))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files that transformers' `T5EncoderModel` and `t5_from_state_dict` read."""
        write_component(self, Path(folder))


def position_buckets(count: int, config: T5Config, device: torch.device) -> Tensor:
    """Return int64 [P, P], the row of the bias table for the query at i and the key at j. Half of the rows are for keys
    behind the query. In each half, the first half is for a distance each, and the others grow with the logarithm."""
    half = config.relative_attention_num_buckets // 2
    near = half // 2
    place = torch.arange(count, device=device)
    offset = place - place[:, None]
    away = offset.abs()
    growth = torch.log(away.clamp_min(1).float() / near) / log(config.relative_attention_max_distance / near)
    far = (near + (growth * (half - near)).long()).clamp_max(half - 1)
    return torch.where(away < near, away, far) + half * (offset > 0)


class _T5Norm(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.d_model)), config.layer_norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (x * scale).to(self.weight.dtype)


class _T5Attention(nn.Module):
    def __init__(self, config: T5Config, first: bool):
        super().__init__()
        self.heads, inner = config.num_heads, config.num_heads * config.d_kv
        self.q, self.k, self.v = (nn.Linear(config.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.d_model, bias=False)
        if first:
            self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, config.num_heads)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (rearrange(part(x), "b p (h d) -> b h p d", h=self.heads) for part in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.o(rearrange(seen, "b h p d -> b p (h d)"))


class _T5FeedForward(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.gated = config.feed_forward_proj.startswith("gated")
        for name in ("wi_0", "wi_1") if self.gated else ("wi",):
            self.add_module(name, nn.Linear(config.d_model, config.d_ff, bias=False))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = _gelu(self.wi_0(x)) * self.wi_1(x) if self.gated else F.relu(self.wi(x))
        return self.wo(inner.to(self.wo.weight.dtype))


class _SelfAttentionPart(nn.Module):
    def __init__(self, config: T5Config, first: bool):
        super().__init__()
        self.SelfAttention, self.layer_norm = _T5Attention(config, first), _T5Norm(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return _residual_sum(x, self.SelfAttention(self.layer_norm(x), bias))


class _FeedForwardPart(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.DenseReluDense, self.layer_norm = _T5FeedForward(config), _T5Norm(config)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return _residual_sum(x, self.DenseReluDense(self.layer_norm(x)))


class _T5Block(nn.Module):
    def __init__(self, config: T5Config, first: bool):
        super().__init__()
        self.layer = nn.ModuleList((_SelfAttentionPart(config, first), _FeedForwardPart(config)))


def _gelu(x: Tensor) -> Tensor:
    """Return the tanh approximation of GELU; torch's version rounds differently and would change the images."""
    return 0.5 * x * (1.0 + torch.tanh(sqrt(2.0 / pi) * (x + 0.044715 * x.pow(3.0))))


def _residual_sum(x: Tensor, more: Tensor) -> Tensor:
    x = x + more
    return x.clamp(-_LARGEST, _LARGEST) if x.dtype == torch.float16 else x
