"""Fuzzy acceptance of image codes: drafter and target are compared over groups of similar codes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmspec.core.round.rules.fuzzy import Fuzzy
from mmspec.io.validation import whole
from mmspec.methods import MethodParts, method

_STEPS = 10  # of Lloyd's algorithm


@torch.no_grad()
def code_groups(codebook: Tensor, groups: int) -> Tensor:
    """Return int64 [K], groups of float [K, d], some empty: k-means at unit length from far apart first centres."""
    if not 1 <= groups <= len(codebook):
        raise ValueError(f"groups: expected 1 to {len(codebook)} groups of {len(codebook)} codes, got {groups}")
    code = normalize(codebook.double(), dim=-1)
    first, nearest = [0], code.new_full((len(code),), torch.inf)
    while len(first) < groups:
        nearest = nearest.minimum((code - code[first[-1]]).square().sum(-1))
        first.append(int(nearest.argmax()))
    centre = code[first]
    for _ in range(_STEPS):
        group = torch.cdist(code, centre).argmin(-1)
        total = torch.zeros_like(centre).index_add_(0, group, code)
        count = torch.bincount(group, minlength=groups)[:, None]
        centre = torch.where(count > 0, total / count.clamp_min(1), centre)
    return torch.cdist(code, centre).argmin(-1)


@method(
    "fuzzygroups",
    domain=("image", "video"),
    kind="rule",
    title="fuzzy groups",
    exact=False,
    about="a code is accepted where drafter and target nearly agree about groups of similar codes",
    paper="Fuzzy Speculative Decoding for a Tunable Accuracy-Runtime Tradeoff",
    order=45,
    tiny={"threshold": 0.1},
    knob="threshold",
    knob_values=(0.05, 0.1, 0.2, 0.3, 0.4),
    knob_shown=0.2,
)
class GroupedFuzzy(Fuzzy):
    """`Fuzzy` whose divergence compares the probabilities of groups of similar codes. Relaxed.

    Many codes look alike, so two distributions over codes may differ where those over groups agree. The groups are
    clusters of the codebook's rows. Where the divergence is small the drafted code itself is accepted: the position has
    the drafter's distribution over codes. Guidance, temperature and truncation come before the groups.

    Args:
        threshold: The largest divergence at which a code is accepted unseen; below 0 the rule is exact.
        divergence: See `Fuzzy`.
        groups: The number of groups, at most that of the codes; 0 compares single codes. Values that are no codes form a
            group.
        table: float [K, d], the rows of the codes; the model's codebook where the rule is created from text. None
            compares single codes.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        threshold: float = 0.05,
        divergence: Literal["js", "kl", "tv"] = "js",
        groups: int = 64,
        table: Tensor | None = None,
    ):
        super().__init__(threshold, divergence)
        count = 0 if table is None else min(whole("groups", groups), len(table))
        self.group = code_groups(table, count) if count else None

    @classmethod
    def make(cls, settings: dict, parts: MethodParts) -> GroupedFuzzy:
        """Return the rule of these settings over the model's codebook."""
        return cls(**settings, table=parts.model.codebook())

    def apart(self, p: Tensor, q: Tensor) -> Tensor:
        return super().apart(self._pooled(p), self._pooled(q))

    def _pooled(self, law: Tensor) -> Tensor:
        """Return the probabilities of the groups, float [..., G + 1], of a distribution float [..., V]."""
        if self.group is None:
            return law
        group = self.group.to(law.device)
        count = int(group.max()) + 1
        padded = torch.cat([group, group.new_full((law.shape[-1] - len(group),), count)])
        return law.new_zeros(*law.shape[:-1], count + 1).index_add_(-1, padded, law)
