"""A target whose vectors are filled in a random order, several a pass, under rules that give a mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Law, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import chains
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.evidence import TokenEvidence
from mmspec.imagegen.continuous.guidance import TokenGuidance
from mmspec.imagegen.continuous.head import Head, Trajectory
from mmspec.imagegen.continuous.mar.order import Step, ranks
from mmspec.imagegen.continuous.model import MaskedModel
from mmspec.imagegen.continuous.noise import Noise
from mmspec.imagegen.continuous.walk import HeadWalk, Request
from mmspec.imagegen.raster_target import Listener


class MaskedTarget:
    """A batch of images being filled, each in an order of its own; a pass sees all known tokens and no others.

    labels: a row for each image, as the model's `prepare` gives it.   steps: the plan of plain decoding, see `cosine_steps`.
    order: int64 [B, L], consumed from its end.
    head: that of the model with `num_sampling_steps`.   walk: how heads are walked, None for plainly.   windows: which steps
    walk equally far, see `Annealing.by_rank`.   keys: of the request; a walk that speculates needs them.   head_calls: calls
    of heads so far, one after another.
    noise: belongs to positions; shared with a drafter, it aligns both walks.   scales: float32 [B, L], guidance of each
    position, which follows from its rank in the order; None without guidance.
    values: float32 [B, L, d], 0 where nothing is known.   known: bool [B, L].   filled: per row, how many are.
    errors: per failed row, one sentence; such a row stops and the others go on.
    listener(row, filled): called for each row after every round that added values to it.

    A draft names the position of every node in `Draft.index`, L for a node that only pads. A valid node holds a drafted
    value; the others ask for one. The verdict's correction float [B, N, d] goes to the open nodes that are not kept.
    Rows may come to differ in how many of their tokens are known; no row's numbers depend on another row.
    """

    verdicts: tuple[str, ...] = ("mask",)

    def __init__(
        self, model: MaskedModel, labels: Tensor, *, num_sampling_steps: str | int | None, steps: Sequence[Step],
        guidance: TokenGuidance, temperature: float, order: Tensor, noise: Noise, listener: Listener | None = None,
        walk: HeadWalk | None = None, windows: Sequence[int] | None = None, keys: Keys | None = None,
    ):  # fmt: skip
        self.model, self.labels, self.steps = model, labels, tuple(steps)
        self.num_sampling_steps, self.head = num_sampling_steps, model.head(num_sampling_steps)
        self.walk, self.keys, self.head_calls = walk or HeadWalk(), keys, 0
        self.walk.check(temperature)
        self.guidance, self.temperature, self.noise, self.listener = guidance, temperature, noise, listener
        self.batch, self.total = len(labels), model.total
        self.order, self.rank = order, ranks(order)
        self.scales = None
        if guidance.paired:
            self.scales = guidance.by_rank(self.steps, self.total).to(order.device)[self.rank]
        counts = self.walk.counts(self.steps, self.total, noise.steps, windows)
        self.counts = None if counts is None else counts.to(order.device)[self.rank]
        # one column more than there are tokens takes what has no place
        self._values = torch.zeros(self.batch, self.total + 1, model.dim, device=model.device)
        self._known = torch.zeros(self.batch, self.total + 1, dtype=torch.bool, device=model.device)
        self.values, self.known = self._values[:, :-1], self._known[:, :-1]
        self.filled = [0] * self.batch
        self.live = [True] * self.batch
        self.errors: dict[int, str] = {}
        self.pending = torch.zeros(self.batch, model.dim, device=model.device)

    @property
    def done(self) -> bool:
        return not any(self.live)

    @property
    def emitted(self) -> list[int]:
        return self.filled

    @property
    def device(self) -> torch.device:
        return self.values.device

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        """The first step: there is no prompt to run before it."""
        draft = self.ask(self.next_positions())
        return draft, self.score(draft)

    def next_positions(self) -> Tensor:
        """int64 [B, N], the positions that the next step of plain decoding decides in each row, ascending in the order."""
        left = [self.total - filled if live else 0 for filled, live in zip(self.filled, self.live, strict=True)]
        ends = [next((step.first for step in self.steps if step.first < rest), rest) for rest in left]
        count = [rest - end for rest, end in zip(left, ends, strict=True)]
        most = max(count)
        # the last in the order of those that are not known; a drafter may have left holes
        rank = self.rank.masked_fill(self.known, -1).topk(most).values.flip(-1)
        position = self.order.gather(1, rank.clamp_min(0))
        wanted = torch.arange(most, device=rank.device) >= most - torch.tensor(count, device=rank.device)[:, None]
        return torch.where(wanted, position, self.total)

    def ask(self, position: Tensor) -> Draft:
        """A draft without drafted values, whose nodes ask for those of `position` int64 [B, N]."""
        value = self.values.new_zeros(*position.shape, self.model.dim)
        shape = chains((0,) * position.shape[1], position.device)
        return Draft(value, shape, Law("none"), torch.zeros_like(position, dtype=torch.bool), position)

    @torch.no_grad()
    def score(self, draft: Draft) -> TokenEvidence:
        """One pass: what every node's token is, were it drawn now, given all that is known."""
        place = draft.index.clamp(max=self.total - 1)
        walk, shape = self.draw(self.head, self.conditions(draft, place), draft.index), (*place.shape, -1)
        value, mean = walk.value.view(shape), walk.last.mean.view(shape)
        bad = ~(value.isfinite() & mean.isfinite()).all(-1) & (draft.index < self.total)
        spoiled = bad[..., None]
        return TokenEvidence(
            mean=mean.masked_fill(spoiled, 0), bad=bad, own=value.masked_fill(spoiled, 0), trajectory=walk
        )

    def conditions(self, draft: Draft, place: Tensor) -> Tensor:
        """z [C, B, N, width] of the nodes of a draft, at positions int64 [B, N]: given what is known, and no drafts."""
        z = self.model.condition(self.values, ~self.known, self.labels, self.scales is not None, draft.index)
        return torch.stack([gather_nodes(branch, place) for branch in z])

    def draw(self, head: Head, z: Tensor, index: Tensor) -> Trajectory:
        """The walks of a head, this model's or a drafter's, to the tokens at positions int64 [B, N], rows [B * N]; L at pads.

        z: [C, B, N, width], as `conditions` gives it. A shorter head has the noise of its own steps.
        """
        place = index.clamp(max=self.total - 1)
        initial, noise = (x.flatten(0, 1) for x in self.noise.at(place))
        guidance = None if self.scales is None else self.scales.gather(1, place).flatten()
        keys = None if self.keys is None else self.keys.at(place)
        request = Request(z.flatten(1, 2), initial, noise, guidance, self.temperature, keys)
        counts = None
        if self.counts is not None:
            pads, counts = index == self.total, self.counts.gather(1, place)
            counts = counts.where(~pads, counts.masked_fill(pads, 0).amax()).flatten()  # no walk of their own
        walk = self.walk.draw(head, request, counts)
        self.head_calls += request.calls
        return walk

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> list[int | None]:
        if verdict.kind != "mask":
            raise ValueError(f"rule: expected one that gives a mask for masked tokens, got a {verdict.kind!r}; leave the rule "
                             "to the decoding")  # fmt: skip
        inside = draft.index < self.total
        failed = (evidence.bad & inside).any(1)
        runs = (torch.tensor(self.live, device=self.device) & ~failed)[:, None]
        keep = verdict.keep & inside & runs
        fill = inside & runs if draft.open is None else inside & runs & draft.open
        value = torch.where(keep[..., None], draft.value, verdict.correction)
        place = torch.where(keep | fill, draft.index, self.total)
        self._values.scatter_(1, place[..., None].expand_as(value), value)
        self._known.scatter_(1, place, True)
        # the round's one transfer to the host
        report = torch.stack((self.known.sum(1), keep.sum(1), failed.long()), 1).tolist()
        accepted = []
        for row, (filled, kept, bad) in enumerate(report):
            accepted.append(kept if self.live[row] else None)
            if self.live[row]:
                self._count(row, filled, bool(bad))
        return accepted

    def _count(self, row: int, filled: int, failed: bool) -> None:
        self.filled[row] = filled
        self.live[row] = not failed and filled < self.total
        if failed:
            self.errors[row] = (f"row {row}: expected finite tokens, got NaN or Inf after {filled} of {self.total} values; "
                                "the row stopped there")  # fmt: skip
        if self.listener is not None:
            self.listener(row, filled)
