"""Sizes of a causal transformer over continuous tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mmspec.core.config_fields import from_fields

HeadKind = Literal["diffusion", "sde"]


@dataclass(frozen=True, slots=True)
class CausalConfig:
    """grid: tokens a side of the image.   token_dim: d of a token.   class_num: labels are 0..class_num - 1 and -1 for none.
    head: "diffusion" is MAR's, "sde" a flow whose steps have a scale from a table.   head_depth, head_width: of its MLP.
    head_steps: denoising steps of a sample.   span: of the "sde" head, see `SDEHead`; at 1 its last step is drawn.

    No checkpoint of this kind is published; the names are ours. Raises ValueError for sizes that do not fit.
    """

    grid: int = 16
    token_dim: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_ratio: float = 4.0
    class_num: int = 1000
    head: HeadKind = "sde"
    head_depth: int = 6
    head_width: int = 1024
    head_steps: int = 20
    span: float = 1.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name in ("grid", "token_dim", "width", "depth", "heads", "class_num", "head_depth", "head_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}; use a positive size")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of heads {self.heads}, got {self.width}; change one")
        if int(self.width * self.mlp_ratio) < 1:
            raise ValueError(f"mlp_ratio: expected a hidden width of at least 1, got {self.mlp_ratio}; correct it")
        if self.head not in get_args(HeadKind):
            raise ValueError(
                f"head: expected one of {', '.join(get_args(HeadKind))}, got {self.head!r}; use one of these"
            )

    @property
    def tokens(self) -> int:
        """L, tokens of an image."""
        return self.grid**2

    @classmethod
    def of(cls, config: CausalConfig | Mapping[str, Any]) -> CausalConfig:
        """From a mapping of field names. Raises ValueError for unknown fields and values of a wrong type."""
        return from_fields(cls, config, (), "a causal model of continuous tokens")

    def to_dict(self) -> dict[str, Any]:
        """Every field, as `of` takes them."""
        return asdict(self)
