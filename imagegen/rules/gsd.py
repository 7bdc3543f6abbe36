"""Grouped Speculative Decoding: a drafted code is verified together with codes of similar target probability."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft
from mmspec.core.round.rules import Weights
from mmspec.core.round.rules.relaxed import RelaxedRule
from mmspec.core.round.sampling import TINY, pooled_mass, ranked_window
from mmspec.imagegen.rules.relaxed import Siblings, siblingwise
from mmspec.io.validation import number, whole
from mmspec.methods import MethodParts, method


@method(
    "gsd",
    domain=("image", "video"),
    kind="rule",
    title="GSD",
    exact=False,
    about="a code is verified together with codes of similar target probability",
    paper="Grouped Speculative Decoding for Autoregressive Image Generation",
    order=20,
    tiny={"group": 3},
    knob="group",
    knob_values=(3, 7, 14, 25, 50),
    knob_shown=14,
)
class GSD(RelaxedRule):
    """Accepts a drafted code x with probability min(1, sum of p over its group / sum of q over its group). Relaxed.

    "Grouped Speculative Decoding for Autoregressive Image Generation". The group is a window of `group` codes around x
    in the target's ranking: group // 2 less likely codes and (group - 1) // 2 likelier codes. The rule emits x itself,
    where a redraw inside the group would be exact. After a rejection the value is drawn from [p - q]+ over single
    codes, as in the paper; with groups of two or three it is not always the nearest to the target (see `RelaxedRule`).

    Siblings are tested against the remainder of p and q after earlier siblings; the ranking stays the target's. x needs
    p(x) > 0, and so do members: codes cut by top-k are in no group. The public code accepts such drafts through their
    neighbours and counts the q of such members.

    Args:
        group: The number of codes in a group. The paper studies 3 to 50; the public code uses 7 below and 6 above,
            which is 14. 1 is the exact rule, bit for bit. At the ends of the ranking the window has fewer codes, where
            the public code fails and tests x alone.
        delta_p: Codes whose probability differs from the draft's by this or more are left out.
        distance: Codes at this squared Euclidean distance from the draft or farther are left out; None leaves out none.
            The distance is between rows of `table`, and a code without a row is left out too. The public code then
            drops the test; its table is the language model's input embedding, with 0.5.
        table: float [K, d], the rows of the codes; the model's codebook where the rule is created from text.
        cold: How drafts with a one-hot distribution, such as fresh Jacobi drafts, are verified. They borrow most.
            "group" is the paper's way, "plain" tests them alone.

    Raises:
        ValueError: A setting is out of range.
    """

    name = "gsd (relaxed)"

    def __init__(
        self,
        group: int = 14,
        delta_p: float = 0.15,
        distance: float | None = None,
        table: Tensor | None = None,
        cold: Literal["group", "plain"] = "group",
    ):
        if whole("group", group) < 1:
            raise ValueError(f"group: expected at least 1, got {group}")
        if not number("delta_p", delta_p, infinite=True) > 0:
            raise ValueError(f"delta_p: expected a number above 0, got {delta_p}")
        if (distance is None) != (table is None):
            raise ValueError("distance: expected both a limit and a table of embeddings or neither, got one of them")
        if distance is not None:
            number("distance", distance, 0, infinite=True)
        if cold not in ("group", "plain"):
            raise ValueError(f"cold: expected group or plain, got {cold!r}")
        self.group, self.delta_p, self.distance, self.table, self.cold = group, delta_p, distance, table, cold

    @classmethod
    def make(cls, settings: dict, parts: MethodParts) -> GSD:
        """Return the rule of these settings; distances are measured in the model's codebook."""
        return cls(**settings, table=parts.model.codebook() if settings.get("distance") is not None else None)

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        if self.group == 1:
            return weights.threshold
        return siblingwise(weights, draft, live, self.ratio)[0]

    def ratio(self, siblings: Siblings) -> Tensor:
        """Return float [B, n], at most 1; the exact rule's threshold for a group with a single code."""
        own, share = siblings.of(siblings.p), siblings.own_share()
        member, inside = self.members(siblings.p, siblings.token, own)
        p, q = pooled_mass(siblings.law, siblings.token, member, inside), share
        if siblings.share is not None:
            q = pooled_mass(siblings.share, siblings.token, member, inside)
        grouped = inside.any(-1) & (own > 0)
        if self.cold == "plain":
            grouped = grouped & (share < 1)
        return torch.where(grouped, (p / q.clamp_min(TINY)).clamp_max(1), siblings.exact)

    def members(self, p: Tensor, token: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return the other codes of each group int64 [B, n, G] and whether each counts, of p float [B, n, V] and codes
        int64 [B, n]. Two selections of G / 2 values replace a full sort; ties rank by index."""
        size = p.shape[-1]
        member, mass = ranked_window(p, token, min(self.group // 2, size), min((self.group - 1) // 2, size))
        inside = (mass - own[..., None]).abs() < self.delta_p
        return member, inside if self.distance is None else inside & self._close(token, member)

    def _close(self, token: Tensor, member: Tensor) -> Tensor:
        table = self.table.to(member.device)
        last = len(table) - 1
        apart = table[member.clamp_max(last)] - table[token.clamp_max(last)][..., None, :]
        near = apart.square().sum(-1) < self.distance
        return near & (member <= last) & (token <= last)[..., None]
