"""Speculative Jacobi decoding, plain and coupled: the coupled draws, the drafter, and its state of a request."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.length.controls import doubling_lengths
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, gather_nodes, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import law_of, ratio_of, sample_categorical
from mmspec.imagegen.jacobi.initialisation import (
    COPYING,
    FROM_LAW,
    ONE_HOT,
    Init,
    JacobiWindow,
    PositionRing,
    sources_of,
)
from mmspec.imagegen.jacobi.tree import Caterpillar, Proactive, caterpillar, with_siblings
from mmspec.imagegen.target import ImageTarget
from mmspec.io.validation import Range, check_fields
from mmspec.methods import decoding_with, method

Coupling = Literal["maximal", "gumbel"]


def maximal_law(p: Tensor, q: Tensor, token: Tensor) -> Tensor:
    """Return the distribution float [..., V] of the new value given the old value `token` int64 [...] ~ q float [...,
    V]. It is min(1, p / q) at `token`, the rest spread as [p - q]+. Averaged over q it is p, which must be recorded
    whether the value changed or not. It repeats with the largest possible probability, 1 - TV(p, q)."""
    stay = ratio_of(p.gather(-1, token[..., None]), q.gather(-1, token[..., None])).clamp_max_(1)
    rest = (p - q).clamp_(min=0)
    mass = rest.sum(-1, keepdim=True)
    rest = torch.where(mass > 0, rest, p)  # equal laws up to rounding
    rest = rest * ((1 - stay) / torch.where(mass > 0, mass, 1.0))
    return rest.scatter_add_(-1, token[..., None], stay)


def gumbel_pick(scores: Tensor, noise: Tensor) -> Tensor:
    """Return argmax(scores + noise), int64 [...], a draw from softmax(scores) for standard Gumbel noise. With the same
    noise, two distributions give the same value with probability at least (1 - TV) / (1 + TV)."""
    return (scores + noise).argmax(-1)


@method(
    "sjd",
    domain=("image", "video"),
    kind="decoding",
    title="SJD",
    exact=True,
    about="speculative Jacobi decoding",
    paper="Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding",
    order=1,
    models=("codes",),
    judged=True,
)
@dataclass(frozen=True, slots=True)
class SJD:
    """Speculative Jacobi decoding: each value is drafted from the target's own distribution of the last round.

    "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding". Needs no
    training. Exact under every exact rule for its kind of draft. A round scores the last committed value and window - 1
    drafts in one pass, accepts a prefix, and redraws the positions behind it. Rows advance independently; the public
    code commits the minimum over the batch and filters the residual twice. A forced position is drafted as its forced
    value.

    Args:
        window: The number of values per pass, drafts and root.
        init: The first draft of a position that no pass has scored yet.
            "random", "uniform": any code; q is one-hot under "random" and uniform under "uniform".
            "repeat_left", "repeat_up", "repeat_frame": the newest value to the left, above, or at the same cell of the
            previous frame; q is one-hot. A random code where there is no neighbour.
            "sample_left", "sample_up", "sample_frame": the likeliest value of that neighbour's newest distribution, as
            in the public code; q is one-hot.
            "left": drawn from the newest distribution before it in raster order, which is its q.
            "up", "frame", "mix": as "left", with the distribution of the cell above, of the previous frame, or the
            average of "left" and "up"; "left" where there is none.
        coupling: How drafts are redrawn; None redraws freely. "maximal" and "gumbel" repeat a value as often as its
            newest distribution allows, so that later contexts become stable. (The public maximal samplers use the old
            distribution, which is not exact.) Coupled drafts need token-wise verification, recursive rejection or K-SEQ.
        tree: Siblings beside the first values, as DEPTHxWIDTH in text; see `Proactive`.

    Raises:
        ValueError: A setting is unknown.
    """

    window: Annotated[int, Range(2, hint="use decoding=None to draft nothing")] = 16
    init: Init = "left"
    coupling: Coupling | None = None
    tree: Proactive | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.tree, Proactive | None):
            raise ValueError(f"tree: expected None or a Proactive, got {type(self.tree).__name__}; pass Proactive()")

    @property
    def name(self) -> str:
        method = "SJD" if self.coupling is None else f"{decoding_with('couples').title} {self.coupling}"
        init = "" if self.init == "left" else f" {self.init}"
        tree = "" if self.tree is None else f" + tree {self.tree.depth}x{self.tree.width}"
        return f"{method}({self.window}){init}{tree}"

    def open(self, target: ImageTarget) -> JacobiState:
        return JacobiState(self, target)


_WINDOW, _SIBLINGS = 0, 1  # separate draws of a round


class JacobiState:
    """The window of a request: `observe` moves it to the new root without a draw, `propose` draws its values. Its
    length may change as long as only emitted values decide it; left-out positions then count as never scored."""

    passes = 0  # the drafter runs no model of its own
    settling = 3  # rounds until a window of another length has scored its positions

    def __init__(self, settings: SJD, target: ImageTarget):
        self.settings, self.deepest = settings, settings.window - 1
        self.sources = sources_of(target.geometry, target.device)
        self.unread: deque[tuple[Tensor, Tensor]] = deque(maxlen=self.sources.reach(settings.init) + 1)
        self.length = 0  # values on the spine of the last draft
        self.shape: Caterpillar | None = None
        self.laws: PositionRing | None = None  # the newest distribution of each position, as scores
        self.noise: PositionRing | None = None
        self.noisy = 0  # positions at the front of the window that have their noise
        self.known: Tensor | None = None  # int64 [B], the positions behind the root that a pass has scored
        self.value = self.scores = None  # old drafts int64 [B, W] at new places; the first known - 1 count
        self.pick = _sampled_pick
        if target.greedy:
            self.pick = _greedy_pick
        elif settings.coupling == "gumbel":
            self.pick = _gumbel_pick
        self.one_hot, self.copies = settings.init in ONE_HOT, settings.init in COPYING

    @property
    def lengths(self) -> tuple[int, ...]:
        return doubling_lengths(self.deepest)

    def observe(self, target: ImageTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.scores = None
        self.noisy = max(self.noisy - max(map(len, target.paths), default=0), 0)
        if draft.tree.nodes == 1:  # recorded for later, so that plain decoding is not slowed down
            self.known = None
            self.unread.append((target.last[:, None], evidence.scores))  # int64 [B, 1], float [B, 1, V]
            return
        self._read(target)
        depth, length = verdict.depth[:, None], draft.tree.max_depth
        step, laws, value = torch.arange(length + 1, device=depth.device), evidence.scores, draft.value
        if draft.tree.max_rank:
            laws, value = laws.index_select(1, self.shape.spine), value.index_select(1, self.shape.spine)
            end = gather_nodes(evidence.scores, verdict.node[:, None])  # the path may have left the spine at its end
            laws = torch.where((step == depth)[..., None], end, laws)
        self._note(target, target.last[:, None] - depth + step, laws)
        self.known = length - verdict.depth
        if self.settings.coupling == "maximal" and not evidence.greedy:
            old = (depth + 1 + step[:length]).clamp(max=length - 1)
            self.value, self.scores = value[:, 1:].gather(1, old), gather_nodes(draft.law.scores, old)

    def _read(self, target: ImageTarget) -> None:
        if self.unread:
            self._note(target, *(torch.cat(parts, 1) for parts in zip(*self.unread, strict=True)))
            self.unread.clear()

    def _note(self, target: ImageTarget, position: Tensor, laws: Tensor) -> None:
        if self.laws is None:
            self.laws = self._ring(target, laws)
        self.laws.write(position, laws)

    def _ring(self, target: ImageTarget, laws: Tensor) -> PositionRing:
        spare = laws.new_zeros(laws.shape[-1])
        spare[target.model.codes :] = -torch.inf
        return PositionRing(self.sources.reach(self.settings.init) + self.settings.window + 2, len(laws), spare)

    def propose(self, target: ImageTarget, keys: Keys, longest: int | None = None) -> Draft:
        """Draw a window of at most `longest` values; None for `deepest`."""
        most = self.deepest if longest is None else min(longest, self.deepest)
        count = self.length = max(min(most, target.left - 1), 0)
        if not count:
            return root_only(target.pending)
        self._read(target)
        window = JacobiWindow.of(target.last, self.known, count, target.total)
        scores, value = self._draw(target, window, keys)
        valid = None
        if max(target.emitted) + count >= target.total:  # a row near its end drafts as it would without the other rows
            valid = window.position < target.total - 1
        tree, levels, width = self.settings.tree, 0, 1
        if tree is not None:
            levels, width = min(tree.depth, count), tree.width
            uniform = None if target.greedy else keys.uniform(Purpose.DRAFT, levels, width - 1, step=_SIBLINGS)
            siblings, there = tree.siblings(scores[:, :levels], value[:, :levels], uniform)
            inside = torch.ones_like(value, dtype=torch.bool) if valid is None else valid
            value, valid = with_siblings(value, siblings), with_siblings(inside, there & inside[:, :levels, None])
        self.shape = caterpillar(count, levels, width, str(target.device))
        valid = valid if valid is None else pad(valid, (1, 0), value=True)
        value = torch.cat((target.pending[:, None], value), 1)
        return Draft(value, self.shape.tree, self._law(target, scores), valid)

    def _law(self, target: ImageTarget, scores: Tensor) -> Law:
        if target.greedy:
            return Law("deterministic")
        drawn = "without_replacement" if self.settings.tree is None else self.settings.tree.drawn
        return Law(drawn, self.shape.row, scores, reused=self.settings.coupling is not None)

    def _draw(self, target: ImageTarget, window: JacobiWindow, keys: Keys) -> tuple[Tensor, Tensor]:
        unscored, scores = window.unscored, self._scores(window)
        value = self.pick(self, target, scores, window, keys)
        certain = unscored if self.one_hot else None
        if self.copies:
            value = torch.where(unscored, self._copies(target, value, scores, window), value)
        if self.sources.forced is not None:
            forced = self.sources.forced[window.inside]
            pinned = unscored & (forced >= 0)
            value = torch.where(pinned, forced, value)
            certain = pinned if certain is None else certain
        if certain is not None and not target.greedy:
            point = torch.full_like(scores, -torch.inf).scatter_(-1, value[..., None], 0.0)
            scores = torch.where(certain[..., None], point, scores)
        return scores, value

    def _scores(self, window: JacobiWindow) -> Tensor:
        """Return the newest scores of every position, or those of its neighbour where it has none."""
        scores = self.laws.read(self.sources.of_law(self.settings.init, window))
        if self.settings.init != "mix":
            return scores
        left = self.laws.read(self.sources.before(window))
        half = torch.logaddexp(scores.log_softmax(-1), left.log_softmax(-1))
        return torch.where(window.unscored[..., None], half, scores)

    def _noise(self, scores: Tensor, position: Tensor, keys: Keys) -> Tensor:
        if self.noise is None:
            spare = scores.new_zeros(scores.shape[-1], dtype=torch.float32)
            self.noise = PositionRing(self.deepest, len(scores), spare)
        new = position[:, self.noisy :]
        if new.shape[1]:
            self.noise.write(new, keys.gumbel_at(new, scores.shape[-1]))
            self.noisy = position.shape[1]
        return self.noise.read(position)

    def _copies(self, target: ImageTarget, value: Tensor, scores: Tensor, window: JacobiWindow) -> Tensor:
        near = self.sources.near(self.settings.init, window)
        canvas = pad(target.values, (0, self.settings.window)).scatter_(1, window.position, value)
        copied = canvas.gather(1, near)
        if self.settings.init.startswith("sample"):
            copied = torch.where(near <= window.horizon, scores.argmax(-1), copied)
        return copied


def _greedy_pick(state: JacobiState, target: ImageTarget, scores: Tensor, window: JacobiWindow, keys: Keys) -> Tensor:
    best = scores.argmax(-1)
    if state.settings.init in FROM_LAW:
        return best
    code = (keys.uniform(Purpose.DRAFT, best.shape[1], step=_WINDOW) * target.model.codes).long()
    return torch.where(window.unscored, code, best)


def _gumbel_pick(state: JacobiState, target: ImageTarget, scores: Tensor, window: JacobiWindow, keys: Keys) -> Tensor:
    return gumbel_pick(scores, state._noise(scores, window.position, keys))


def _sampled_pick(state: JacobiState, target: ImageTarget, scores: Tensor, window: JacobiWindow, keys: Keys) -> Tensor:
    count, law = scores.shape[1], law_of(scores)
    if state.scores is not None:
        old = min(count, state.value.shape[1])
        again = maximal_law(law[:, :old], law_of(state.scores[:, :old]), state.value[:, :old])
        lives_on = torch.arange(old, device=law.device) < (state.known - 1)[:, None]
        law[:, :old] = torch.where(lives_on[..., None], again, law[:, :old])
    return sample_categorical(law, keys.uniform(Purpose.DRAFT, count, step=_WINDOW))
