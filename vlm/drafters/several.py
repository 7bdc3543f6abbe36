"""Several trained drafters for a request: routed by their confidence, or drawn from as a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Self

import torch
from torch import Tensor

from mmspec.core.drafting.growth import DraftBudget, grow_draft
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.shapes import Chain, Shape
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.methods import MethodParts, method, value_of
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.target import TextTarget


class Route:
    """Each row drafts with the drafter that is surest of the next token. Exact with every rule. "TAPS: Task Aware
    Proposal Distributions for Speculative Sampling". The confidence, the largest probability of a drafter's first
    distribution, is known before anything is drawn, so the drafter's own distribution is on record. A drafter that no
    row chose only reads the accepted tokens. At least two drafters read the same states of the target. All get `shape`,
    or the shapes of the first."""

    verb = "route"

    def __init__(self, drafters: Sequence[ShapedDrafter], shape: Shape | None = None):
        if len(drafters) < 2 or not all(isinstance(drafter, ShapedDrafter) for drafter in drafters):
            kinds = ", ".join(type(drafter).__name__ for drafter in drafters) or "none"
            raise ValueError(f"drafters: expected two or more trained drafters such as EAGLE, got {kinds}; change them")
        if len(levels := {drafter.levels for drafter in drafters}) > 1:
            raise ValueError(
                f"drafters: expected drafters that read the same states, got levels {sorted(map(str, levels))}; "
                "choose others"
            )
        shapes = drafters[0].shapes if shape is None else (shape, shape)
        self.drafters = tuple(drafter.with_shape(*shapes) for drafter in drafters)
        self.levels = drafters[0].levels
        self.name = f"{self.verb}({', '.join(drafter.name for drafter in drafters)})"

    def open(self, target: TextTarget) -> SeveralState:
        return SeveralState(self, [drafter.open(target) for drafter in self.drafters])

    def open_without_prefill(self, target: TextTarget) -> SeveralState:
        return SeveralState(self, [drafter.open_without_prefill(target) for drafter in self.drafters])

    def shares(self, confidence: Tensor) -> Tensor:
        """Return the weights of the drafters' distributions, float32 [B, K], from their confidence, float32 [B, K]."""
        best = confidence.argmax(-1, keepdim=True)  # of equal confidences the first wins
        return torch.zeros_like(confidence).scatter_(1, best, 1.0)


class DraftMixture(Route):
    """Drafts are drawn from the mean of the drafters' distributions, which is on record. Exact with every rule. "TAPS:
    Task Aware Proposal Distributions for Speculative Sampling" unites trees instead. A draft costs the steps of all
    drafters. A greedy request picks the likeliest tokens of the mean."""

    verb = "mixture"

    def shares(self, confidence: Tensor) -> Tensor:
        return torch.full_like(confidence, 1 / confidence.shape[1])


class SeveralState:
    """A `LevelwiseState` whose distributions are weighted means; `weight` float32 [B, K] has logarithms. A feature
    joins those of the drafters with a weight (`active`), so length controls that read features do not fit."""

    def __init__(self, control: Route, states: list[PairState]):
        for state in states:
            if not isinstance(state, PairState) or type(state).draft is not PairState.draft:
                raise ValueError(
                    f"drafters: expected drafters that grow drafts level by level from a state of their own, got "
                    f"{state.drafter.name}; use another drafter"
                )
        self.control, self.states, self.active = control, states, list(states)
        self.weight: Tensor | None = None
        self.cache = SimpleNamespace(lengths=[], length=None)  # the drafters' own caches are set back after a draft
        self._serve()

    def _serve(self) -> None:
        first = min(self.states, key=lambda state: state.deepest)
        self.shape, self.deepest = first.shape, first.deepest
        own = [state.ids for state in self.states]
        same = all(ids is own[0] or None not in (ids, own[0]) and torch.equal(ids, own[0]) for ids in own)
        self.ids, self.spread = (own[0], False) if same else (None, True)
        self.independent = all(state.independent for state in self.states)

    @property
    def passes(self) -> int:
        return sum(state.passes for state in self.states)

    def follow(self, target: TextTarget) -> Self:
        return type(self)(self.control, [state.follow(target) for state in self.states])

    def resize(self, shape: Shape) -> None:
        self.shape = shape

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        depth = self.deepest if longest is None else min(self.deepest, longest)
        budget = DraftBudget(depth, target.rooms(depth))
        if budget.is_empty:
            return root_only(target.pending)
        for state in self.states:
            state.ready(depth)
        self._choose(target)
        lengths = [(list(state.cache.lengths), state.cache.length) for state in self.states]
        whole = isinstance(self.shape, Chain) or depth >= self.deepest
        draft = grow_draft(self, target, self.shape if whole else self.shape.cut(depth), keys, budget)
        for state, (rows, length) in zip(self.states, lengths, strict=True):
            state.cache.lengths, state.cache.length = rows, length
        return draft

    def _choose(self, target: TextTarget) -> None:
        self.active, own = self.states, [state.root[:, None] for state in self.states]
        scores = [self._score(*pair, 1, not target.greedy)[:, 0] for pair in zip(self.states, own, strict=True)]
        share = self.control.shares(torch.stack([score.amax(-1).exp() for score in scores], -1))
        live = torch.tensor(target.live, device=share.device)
        share = torch.where(live[:, None], share, share[target.live.index(True)])  # rows that ended cost no steps
        used = (share > 0).any(0).tolist()
        self.active = [state for state, counts in zip(self.states, used, strict=True) if counts]
        self.weight = share[:, used].log()

    def _score(self, state: PairState, out: Tensor, depth: int, drawn: bool) -> Tensor:
        """Return a drafter's log-probabilities, float32 [B, n, V or k]."""
        scores = (state.law if drawn else state.logits)(out, depth).float().log_softmax(-1)
        if self.spread and state.ids is not None:
            size = (*scores.shape[:-1], state.target.parts.vocab_size)
            scores = scores.new_full(size, -torch.inf).index_copy_(-1, state.ids, scores)
        return scores

    def _parts(self, out: Tensor) -> list[Tensor]:
        return list(out.split([state.root.shape[-1] for state in self.active], -1))

    def _mean(self, out: Tensor, depth: int, drawn: bool) -> Tensor:
        parts = zip(self.active, self._parts(out), self.weight.unbind(-1), strict=True)
        return torch.stack(
            [self._score(state, own, depth, drawn) + weight[:, None, None] for state, own, weight in parts]
        ).logsumexp(0)

    @property
    def root(self) -> Tensor:
        """The features of the drafters with a weight after the last committed token, float [B, F]."""
        return torch.cat([state.root for state in self.active], -1)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        return self._mean(out, depth, False)

    def law(self, out: Tensor, depth: int) -> Tensor:
        return self._mean(out, depth, True)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return out

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        pairs = zip(self.active, self._parts(hidden), strict=True)
        return torch.cat([state.expand(token, own, ancestor, back, depth) for state, own in pairs], -1)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        for state in self.states:
            state.observe(target, draft, evidence, verdict)


def _several(kind: type[Route], parts: MethodParts, texts: Sequence[str | None], shape: str | None) -> Route:
    drafters = [value_of(text, "vlm", "drafter", parts) for text in texts if text is not None]
    return kind(drafters, value_of(shape, "vlm", "shape", parts))


@method(
    "route",
    domain="vlm",
    kind="drafter",
    title="TAPS, routed",
    exact=True,
    needs=("weights",),
    order=26,
    drafts=("dynamic tree", "sampled tree", "sampled chain"),
    steps=("levels", 1, 2),
    about="each row drafts with the drafter that is surest of the next token",
    paper="TAPS: Task Aware Proposal Distributions for Speculative Sampling",
)
def route(parts: MethodParts, first: str, second: str, third: str | None = None, shape: str | None = None) -> Route:
    """Return `Route` over trained drafters.

    Args:
        parts: The model and the weights of the drafters.
        first: A drafter with its weights, such as (eagle@zoo:vlm/eagle).
        second: Another drafter, such as (msd@zoo:vlm/msd).
        third: One more drafter.
        shape: The shape of all drafts, such as (best:nodes=16); none for that of the first drafter.
    """
    return _several(Route, parts, (first, second, third), shape)


@method(
    "mixture",
    domain="vlm",
    kind="drafter",
    title="mixture of drafters",
    exact=True,
    needs=("weights",),
    order=27,
    drafts=("dynamic tree", "sampled tree", "sampled chain"),
    steps=("levels", 1, 2),
    about="drafts come from the mean of the distributions of several drafters",
    paper="TAPS: Task Aware Proposal Distributions for Speculative Sampling",
)
def mixture(
    parts: MethodParts, first: str, second: str, third: str | None = None, shape: str | None = None
) -> DraftMixture:
    """Return `DraftMixture` over trained drafters.

    Args:
        parts: The model and the weights of the drafters.
        first: A drafter with its weights, such as (eagle@zoo:vlm/eagle).
        second: Another drafter, such as (msd@zoo:vlm/msd).
        third: One more drafter.
        shape: The shape of all drafts, such as (best:nodes=16); none for that of the first drafter.
    """
    return _several(DraftMixture, parts, (first, second, third), shape)
