"""The target of masked continuous tokens: vectors filled in a random order, several a pass, under rules that give a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Law, Verdict, gather_nodes
from mmspec.core.keys import Keys
from mmspec.core.tree import chains
from mmspec.imagegen.continuous.head_sampling.head import Head, Trajectory
from mmspec.imagegen.continuous.head_sampling.sampling import HeadRequest, HeadSampling, Noise
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep, ranks
from mmspec.imagegen.continuous.schedules.token_cache import FULL_PASS, DecoderPass
from mmspec.imagegen.target import Listener
from mmspec.io.validation import LARGEST_SCALE, check_fields, number


@dataclass(slots=True)
class TokenEvidence(Evidence):
    """Evidence of a target that draws every token itself, with the noise of its position.

    own: float32 [B, N, d], its draw for each node, finite everywhere.   mean: of the last denoising step.
    trajectory: the walk behind it, rows [B * N], raw: rows of `bad` nodes hold NaN or Inf.
    """

    own: Tensor | None = None
    trajectory: Trajectory | None = None


class MaskedModel(Protocol):
    """name: what tables print.   total: L, tokens of an image.   dim: d of a token.   device, dtype: of the weights.
    no_pixels: one sentence why tokens cannot be decoded, None where they can.
    """

    name: str
    total: int
    dim: int
    device: torch.device
    dtype: torch.dtype
    no_pixels: str | None

    def prepare(self, prompts: object) -> Tensor:
        """A row for each image, the condition made from what the user gave: int64 [B], or features float [B, P, C]."""

    def condition(
        self, tokens: Tensor, mask: Tensor, labels: Tensor, paired: bool, wanted: Tensor | None = None, slots: DecoderPass = FULL_PASS
    ) -> Tensor:  # fmt: skip
        """z [C, B, L, width], what the head is conditioned on, of C branches: 1, or 2 with the unconditional one.

        tokens: float [B, L, d].   mask: bool [B, L], True where masked; no one sees what stands there.
        wanted: int64 [B, N], the positions whose z will be read, L for none; a model may leave others out. None for all.
        slots: which tokens the decoder computes, rows [C * B], those of the conditional branch first.
        """

    def head(self, num_sampling_steps: str | int | None = None) -> Head:
        """The head with as many denoising steps, None for the model's own."""

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels float32 [B, 3, H, W] in 0..1 of an image's tokens float [B, L, d]."""


Schedule = Literal["linear", "constant"]


@dataclass(frozen=True, slots=True)
class TokenGuidance:
    """scale: s; at exactly 1 only the conditional branch is run.   schedule: "constant", or "linear" from about 1 at the
    first token to s at the last: 1 + (s - 1) (total - masked) / total, with what a step leaves masked.

    Raises ValueError for a scale outside 0..1000 and an unknown schedule.
    """

    scale: float = 1.0
    schedule: Schedule = "linear"

    def __post_init__(self) -> None:
        number("guidance_scale", self.scale, 0, LARGEST_SCALE)
        check_fields(self)
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"guidance_schedule: expected one of {', '.join(get_args(Schedule))}, got {self.schedule!r}; use "
                             "one of these")  # fmt: skip

    @property
    def paired(self) -> bool:
        """Whether the unconditional branch runs too."""
        return self.scale != 1

    def at(self, masked: int, total: int) -> float:
        """The scale of a step that leaves `masked` of `total` tokens masked."""
        return self.scale if self.schedule == "constant" else 1 + (self.scale - 1) * (total - masked) / total

    def by_rank(self, steps: Sequence[GenerationStep], total: int) -> Tensor:
        """float32 [total], the scale of the token at each rank of the order, whoever decides it and when."""
        scales = torch.empty(total)
        for step in steps:
            scales[step.first : step.last] = self.at(step.masked, total)
        return scales


class MaskedTarget:
    """A batch of images being filled, each in an order of its own; a pass sees all known tokens and no others.

    labels: a row for each image, as the model's `prepare` gives it.   steps: the plan of plain decoding, see `cosine_steps`.
    order: int64 [B, L], consumed from its end.
    head: that of the model with `num_sampling_steps`.   head_sampling: how heads are walked, None for plainly.   windows: which steps
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
        self, model: MaskedModel, labels: Tensor, *, num_sampling_steps: str | int | None, steps: Sequence[GenerationStep],
        guidance: TokenGuidance, temperature: float, order: Tensor, noise: Noise, listener: Listener | None = None,
        head_sampling: HeadSampling | None = None, windows: Sequence[int] | None = None, keys: Keys | None = None,
    ):  # fmt: skip
        self.model, self.labels, self.steps = model, labels, tuple(steps)
        self.num_sampling_steps, self.head = num_sampling_steps, model.head(num_sampling_steps)
        self.head_sampling, self.keys, self.head_calls = head_sampling or HeadSampling(), keys, 0
        self.head_sampling.check(temperature)
        self.guidance, self.temperature, self.noise, self.listener = guidance, temperature, noise, listener
        self.batch, self.total = len(labels), model.total
        self.order, self.rank = order, ranks(order)
        self.scales = None
        if guidance.paired:
            self.scales = guidance.by_rank(self.steps, self.total).to(order.device)[self.rank]
        counts = self.head_sampling.counts(self.steps, self.total, noise.steps, windows)
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
        draft = self.open_draft(self.next_positions())
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

    def open_draft(self, position: Tensor) -> Draft:
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
        request = HeadRequest(z.flatten(1, 2), initial, noise, guidance, self.temperature, keys)
        counts = None
        if self.counts is not None:
            pads, counts = index == self.total, self.counts.gather(1, place)
            counts = counts.where(~pads, counts.masked_fill(pads, 0).amax()).flatten()  # no walk of their own
        walk = self.head_sampling.draw(head, request, counts)
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
