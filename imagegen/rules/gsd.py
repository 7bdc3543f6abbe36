"""Grouped Speculative Decoding: a drafted code is judged together with the codes the target finds about as likely."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.rules import Weights
from mmspec.core.sampling import TINY, pooled_mass, ranked_window
from mmspec.imagegen.rules.relaxed import RelaxedRule, Siblings, siblingwise
from mmspec.io.validation import number, whole
from mmspec.methods import MethodParts, method


@method(
    "gsd", domain=("image", "video"), kind="rule", title="GSD", exact=False,
    about="a code is judged together with the codes that the target finds about as likely",
    paper="Grouped Speculative Decoding for Autoregressive Image Generation", order=20, tiny={"group": 3},
    knob="group", knob_values=(3, 7, 14, 25, 50), knob_shown=14,
)  # fmt: skip
class GSD(RelaxedRule):
    """Accepts a drafted code x with probability min(1, sum of p over its group / sum of q over its group). Relaxed: what is
    emitted is x, where a redraw inside the group would keep the target's law.

    "Grouped Speculative Decoding for Autoregressive Image Generation". The group is the window of `group` codes around x in
    the target's own ranking at that position: group // 2 less likely ones and (group - 1) // 2 likelier ones. What follows
    a rejection has the law [p - q]+ over single codes, as in the paper. A code whose p / q is above its group's is accepted
    less often than by the exact rule; that law is nearest to the target all the same while the codes together are accepted
    at least as often (see `RelaxedRule`), which groups of two or three do not always reach. Siblings are tested against what
    earlier ones left of p and q; the ranking stays the target's.

    x needs p(x) > 0 itself, and so do members: values that top-k cut are in no group (the public code accepts such drafts
    through their neighbours, and counts the q of such members).

    Args:
        group: The number of codes in a group. The paper studies 3 to 50; the public code takes 7 below and 6 above, which
            is 14. 1 is the exact rule, bit for bit. At the ends of the ranking the window has fewer codes (the public code
            fails there and tests x alone).
        delta_p: Codes whose probability differs from the draft's by this or more are left out.
        distance: Codes at least this far from the draft, in squared Euclidean distance between rows of `table`, are left out,
            and so is a code without a row (the public code then drops the test; its table is the language model's input
            embedding, with 0.5). None leaves out none.
        table: float [K, d], the rows of the codes; the model's codebook where the rule is made from text.
        cold: How drafts with a one-hot law are judged, such as fresh Jacobi drafts, which borrow most. "group" is the paper's
            way, "plain" tests them alone.

    Raises:
        ValueError: A setting is out of range.
    """

    name = "gsd (relaxed)"

    def __init__(
        self, group: int = 14, delta_p: float = 0.15, distance: float | None = None, table: Tensor | None = None,
        cold: Literal["group", "plain"] = "group",
    ):  # fmt: skip
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
        """The rule of these settings; its distances are those between the codes of the model."""
        return cls(**settings, table=parts.model.codebook() if settings.get("distance") is not None else None)

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        if self.group == 1:
            return weights.threshold
        return siblingwise(weights, draft, live, self.ratio)[0]

    def ratio(self, siblings: Siblings) -> Tensor:
        """float [B, n], at most 1; the exact rule's threshold for a group of one."""
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
        """The other codes of each group, int64 [B, n, G], and which entries count, bool. own: [B, n], p at the token.

        The window is found by two selections of G / 2 values instead of a sort of all; ties rank by index.
        """
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
