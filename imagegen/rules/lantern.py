"""LANTERN and LANTERN++: a drafted code may borrow the probability of the codes nearest to it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree, gather_nodes
from mmspec.core.round.keys import Keys
from mmspec.core.round.rules import Rule, Weights
from mmspec.core.round.rules.base import at_node, keep_live, live_nodes, residual_row
from mmspec.core.round.rules.relaxed import RelaxedRule, exact_rule_for
from mmspec.core.round.sampling import TINY, LogLaw, Residual, borrowed_mass, borrowing_thresholds, law_of
from mmspec.imagegen.any_order import accepted_from_root
from mmspec.imagegen.model import ImageModel
from mmspec.imagegen.rules.relaxed import Siblings, siblingwise
from mmspec.io.validation import number, whole
from mmspec.methods import MethodParts, method

ROWS_AT_A_TIME = 512  # the number of codes whose distances are in memory at once


@torch.no_grad()
def nearest_codes(codebook: Tensor, k: int, normalise: bool = True) -> Tensor:
    """Return int64 [K, k], the k nearest other codes of every row of float [K, d] by Euclidean distance, nearest first.
    Rows are normalised as in LlamaGen's decoder; LANTERN's public table comes from the raw rows."""
    if codebook.dim() != 2:
        raise ValueError(f"codebook: expected rows of codes [K, d], got shape {tuple(codebook.shape)}")
    if not 1 <= k < len(codebook):
        raise ValueError(f"k: expected 1 to {len(codebook) - 1} neighbours of {len(codebook)} codes, got {k}")
    code = codebook.double()  # so that close distances keep their order
    code = normalize(code, dim=-1) if normalise else code
    square, nearest = code.square().sum(-1), []
    for start in range(0, len(code), ROWS_AT_A_TIME):
        part = code[start : start + ROWS_AT_A_TIME]
        # |a - b|^2 without |a|^2, which is constant in a row
        distance = torch.addmm(square[None], part, code.T, alpha=-2)
        row = torch.arange(len(part), device=code.device)
        distance[row, start + row] = torch.inf
        nearest.append(distance.topk(k, largest=False).indices)
    return torch.cat(nearest)


_tables: WeakKeyDictionary[ImageModel, tuple[Callable, int, Tensor, Tensor]] = WeakKeyDictionary()


def codebook_table(model: ImageModel, make: Callable[[Tensor, int], Tensor], k: int) -> Tensor:
    """Return `make(codebook, k)`, cached until the codebook changes, because all distances take seconds."""
    codebook, known = model.codebook(), _tables.get(model)
    if known is not None and known[:2] == (make, k):
        _, _, rows, table = known
        if rows.dtype == codebook.dtype and rows.device == codebook.device and torch.equal(rows, codebook):
            return table
    table = make(codebook, k)
    _tables[model] = make, k, codebook.detach().clone(), table
    return table


def _raw_neighbours(codebook: Tensor, k: int) -> Tensor:
    # the published residuals read one neighbour more
    return nearest_codes(codebook, min(k + 1, len(codebook) - 1), normalise=False)


def published_residual(
    siblings: Siblings, near: Tensor, wipes: Tensor, variant: Literal["static", "dynamic", "lumina"]
) -> Tensor:
    """Return the public code's distribution after a rejection, float [B, n, V]; uniform where nothing is left. "static"
    is [p - s]+ with s = 0 on the neighbourhood `near` int64 [B, n, k], "dynamic" p without x and it, "lumina" [p - s]+
    without it. It counts where `wipes` bool [B, n]; p and s are `Siblings.law` and the share (q = 1 removes x)."""
    hood = torch.zeros_like(siblings.law, dtype=torch.bool).scatter_(2, near, wipes[..., None].expand_as(near))
    if siblings.share is None or variant == "dynamic":
        rest = siblings.law.scatter(2, siblings.token[..., None], 0.0)
        rest = rest if variant == "static" else rest.masked_fill(hood, 0.0)
    elif variant == "static":
        rest = (siblings.law - siblings.share.masked_fill(hood, 0.0)).clamp_min_(0)
    else:
        rest = (siblings.law - siblings.share).clamp_min_(0).masked_fill_(hood, 0.0)
    total = rest.sum(-1, keepdim=True)
    # where the remainder is NaN, fall back to the target's distribution
    empty = torch.where(total == 0, 1 / rest.shape[-1], siblings.p)
    return torch.where(total > 0, rest / total, empty)


ResidualVariant = Literal["optimal", "static", "dynamic", "lumina"]


@method(
    "lantern",
    domain=("image", "video"),
    kind="rule",
    title="LANTERN",
    exact=False,
    about="a code borrows the probability of its nearest codes, up to a fixed mass",
    paper="LANTERN: Accelerating Visual Autoregressive Models with Relaxed Speculative Decoding",
    order=10,
    tiny={"k": 2, "delta": 0.4},
    bench={"k": 64},
    knob="delta",
    knob_values=(0.02, 0.05, 0.1, 0.2, 0.4),
    knob_shown=0.1,
)
class Lantern(RelaxedRule):
    """Accepts a drafted code x with probability min(1, (p(x) + C) / q(x)), C the mass of its nearest codes. Relaxed.

    "LANTERN: Accelerating Visual Autoregressive Models with Relaxed Speculative Decoding". Neighbours count in order of
    distance until their sum would exceed delta. The rule emits x itself, never a neighbour. delta bounds the borrowed
    mass of a single draft; over all drafts the total variation from p may exceed it, but not that of the drafter. A
    code with p(x) = 0 may pass on borrowed mass, even if top-k cut it. Later siblings borrow from the remainder after
    earlier siblings.

    Greedy requests are relaxed too: x passes when its mass plus the borrowed mass makes it the argmax, and the longest
    path of such nodes is accepted. The public code uses guidance 3, top_k 2000, top_p 1, k 1000, delta 0.1, and filters
    top-p first.

    Args:
        neighbours: int64 [K, width], see `nearest_codes`; those of the model's codebook where the rule is created from
            text.
        k: The most neighbours that a code borrows from, at most the table's width.
        delta: The most mass that a draft borrows; 0 is the exact rule, bit for bit.
        residual: The distribution after a rejection. "optimal" is [p - q]+, for a single draft the nearest to the
            target (see `RelaxedRule`), and falls back to p. The public code has three others: "static" subtracts q
            without the neighbourhood, "dynamic" removes x and the neighbourhood from p, "lumina" removes the
            neighbourhood from p and subtracts q. These use k + 1 neighbours, act even when the nearest neighbour has no
            mass, fall back to the uniform distribution, and are relaxed at delta 0 too. Drafts without a distribution
            have q = 1.

    Raises:
        ValueError: A setting is out of range or, on use, the table has more codes than the target.
    """

    def __init__(self, neighbours: Tensor, k: int = 1000, delta: float = 0.1, residual: ResidualVariant = "optimal"):
        if not 0 <= number("delta", delta) <= 1:
            raise ValueError(f"delta: expected 0 to 1, got {delta}; use LanternPlus for factors above 1")
        self._set("lantern", neighbours, k, residual)
        self.delta = delta

    @classmethod
    def make(cls, settings: dict, parts: MethodParts) -> Lantern:
        """Return the rule of these settings over the model's codebook."""
        k = settings.get("k", signature(cls).parameters["k"].default)
        return cls(codebook_table(parts.model, _raw_neighbours, k), **settings)

    def _set(self, name: str, neighbours: Tensor, k: int, residual: ResidualVariant) -> None:
        if neighbours.dim() != 2 or neighbours.dtype != torch.long or not neighbours.shape[1]:
            raise ValueError(f"neighbours: expected int64 [K, width], got {neighbours.dtype} {tuple(neighbours.shape)}")
        if whole("k", k) < 1:
            raise ValueError(f"k: expected at least 1, got {k}")
        if residual not in get_args(ResidualVariant):
            raise ValueError(f"residual: expected one of {', '.join(get_args(ResidualVariant))}, got {residual!r}")
        if residual != "optimal" and neighbours.shape[1] < min(k + 1, len(neighbours) - 1):
            raise ValueError(
                f"neighbours: expected k + 1 = {k + 1} columns or all other codes for the {residual} residual, "
                f"got {neighbours.shape[1]}"
            )
        self.table, self.k, self.variant = neighbours, min(k, neighbours.shape[1]), residual
        self.name = f"{name} (relaxed)" if residual == "optimal" else f"{name}, {residual} residual (relaxed)"

    @property
    def terms(self) -> tuple[float, float]:
        """The constant and the factor of p(x) whose sum is the budget."""
        return self.delta, 0.0

    def budget(self, mass: Tensor) -> Tensor:
        """Return the most mass that a code of probability mass [B, n] may borrow."""
        constant, factor = self.terms
        return constant + factor * mass

    def rule_for(self, draft: Draft, evidence: Evidence) -> Rule:
        return self

    def borrowed(self, law: Tensor, token: Tensor, mass: Tensor) -> Tensor:
        """Return float [B, n], C: the mass of the longest run of nearest codes within the budget, of distributions [B,
        n, V] and their values `mass` [B, n] at the drafted codes int64 [B, n]."""
        return borrowed_mass(law, token, self.nearest(law), self.budget(mass))

    def nearest(self, law: Tensor | LogLaw) -> Tensor:
        """Return int64 [K, k], the table on the device of the target's distributions [B, n, V]."""
        if len(self.table) > law.shape[-1]:
            raise ValueError(
                f"neighbours: expected rows for at most the target's {law.shape[-1]} values, got "
                f"{len(self.table)}; compute the table from this model's codebook"
            )
        return self.table.to(law.device)[:, : self.k]

    def ratio(self, siblings: Siblings) -> Tensor:
        """Return float [B, n], (law(x) + C) / s(x), which may exceed 1; the exact threshold where nothing is borrowed."""
        mass = siblings.of(siblings.law)
        more = self.borrowed(siblings.law, siblings.token, mass)
        raised = (mass + more) / siblings.own_share().clamp_min(TINY)
        return torch.where(more > 0, raised, siblings.exact) if self.variant == "optimal" else raised

    def reject(self, siblings: Siblings) -> Tensor:
        """Return the public code's distribution after a rejection, float [B, n, V]."""
        table = self.table.to(siblings.law.device)
        row = table[siblings.token.clamp_max(len(table) - 1)]
        nearest = siblings.law.gather(2, row[..., :1])[..., 0]
        wipes = (nearest <= self.budget(siblings.of(siblings.law))) & (siblings.token < len(table))
        return published_residual(siblings, row[..., : self.k + 1], wipes, self.variant)

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        if self.variant == "optimal":
            if isinstance(weights.p, LogLaw) and draft.tree.straight:
                return borrowing_thresholds(
                    weights.p,
                    weights.q,
                    residual_row(draft),
                    draft.value,
                    weights.threshold,
                    self.nearest(weights.p),
                    self.terms,
                    live,
                )
            return siblingwise(weights, draft, live, self.ratio)[0].clamp_max(1)
        ratio, weights.p = siblingwise(weights, draft, live, self.ratio, self.reject)
        return ratio.clamp_max(1)

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if not evidence.greedy or draft.tree.nodes == 1:
            return super().weigh(evidence, draft)
        parent, p = expand_tree(draft.tree.parent, draft.batch), law_of(evidence.scores)
        law, best = gather_nodes(p, parent), evidence.scores.argmax(-1)
        token = draft.value.clamp(0, p.shape[-1] - 1)
        mass = law.gather(2, token[..., None])[..., 0]
        more = self.borrowed(law, token, mass)
        first, top = best.gather(1, parent), law.amax(-1)
        lifted = (mass + more > top) | ((mass + more == top) & (token < first))
        hit = keep_live(((draft.value == first) | (lifted & (more > 0))).to(p.dtype), live_nodes(evidence, draft))
        return Weights(_longest_path(draft, hit), "descend", extra=best)

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual | None:
        return exact_rule_for(draft).form(evidence, draft, weights, node) if self.variant == "optimal" else None

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        if self.variant == "optimal":
            return super().residual(evidence, draft, weights, node)
        return at_node(weights.p, node)

    def resample(self, evidence: Evidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys) -> Verdict:
        if not evidence.greedy:
            return super().resample(evidence, draft, weights, verdict, keys)
        verdict.correction = at_node(weights.extra, verdict.node)
        return verdict


def _longest_path(draft: Draft, hit: Tensor) -> Tensor:
    """Drop passed nodes that would end the longest passed path early: siblings beside it. Ties go to the first path."""
    tree = draft.tree
    end = torch.where(accepted_from_root(tree, hit > 0), expand_tree(tree.depth, draft.batch), -1).argmax(1)
    path = tree.ancestor.expand(draft.batch, -1, -1)[torch.arange(draft.batch, device=hit.device), end]
    return hit * (path | ~path.gather(1, expand_tree(tree.parent, draft.batch)))


@method(
    "lantern++",
    domain=("image", "video"),
    kind="rule",
    title="LANTERN++",
    exact=False,
    about="LANTERN with a budget that grows with the draft's own probability",
    paper="LANTERN++: Enhanced Relaxed Speculative Decoding with Static Tree Drafting for Visual Auto-regressive Models",
    order=11,
    tiny={"k": 2},
    bench={"k": 16},
    knob="factor",
    knob_values=(1.5, 2, 3, 5, 10),
    knob_shown=3,
)
class LanternPlus(Lantern):
    """LANTERN with a budget that grows with the draft's own probability: p(x) + C is at most factor * p(x). Relaxed.

    "LANTERN++: Enhanced Relaxed Speculative Decoding with Static Tree Drafting for Visual Auto-regressive Models". With
    the optimal residual no value becomes more than `factor` times as likely as under the target, so a step is within 1
    - 1 / factor of it in total variation. The public code has a single flag for both rules and reads values above 1 as
    factors.

    Args:
        neighbours: int64 [K, width], as in `Lantern`.
        k: The most neighbours that a code borrows from, at most the table's width.
        factor: The most that a code's probability is raised by; 1 is the exact rule, bit for bit.
        residual: The distribution after a rejection; see `Lantern`.

    Raises:
        ValueError: A setting is out of range or, on use, the table has more codes than the target.
    """

    def __init__(self, neighbours: Tensor, k: int = 10, factor: float = 3.0, residual: ResidualVariant = "optimal"):
        if not number("factor", factor) >= 1:
            raise ValueError(f"factor: expected 1 or more, got {factor}")
        self._set("lantern++", neighbours, k, residual)
        self.factor = factor

    @property
    def terms(self) -> tuple[float, float]:
        return 0.0, self.factor - 1
