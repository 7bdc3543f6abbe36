"""The target of masked continuous tokens: vectors in a random order, several per pass, under rules with mask verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, gather_nodes
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import chains
from mmspec.imagegen.continuous.head_sampling.head import Head, Trajectory
from mmspec.imagegen.continuous.head_sampling.sampling import HeadRequest, HeadSampling, Noise
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep, ranks
from mmspec.imagegen.continuous.schedules.token_cache import FULL_PASS, DecoderPass
from mmspec.imagegen.filled_target import Listener, MaskFilledTarget
from mmspec.io.validation import LARGEST_SCALE, check_fields, number


@dataclass(slots=True)
class TokenEvidence(Evidence):
    """The evidence of a target that draws every token itself, with the noise of its position."""

    own: Tensor | None = None  # float32 [B, N, d], finite everywhere; `mean` is that of the last denoising step
    trajectory: Trajectory | None = None  # of each draw, rows [B * N]; rows of `bad` nodes hold NaN or Inf


class MaskedModel(Protocol):
    name: str
    total: int  # L, the number of tokens of an image
    dim: int  # d, the width of a token
    device: torch.device
    dtype: torch.dtype
    no_pixels: str | None  # why tokens cannot be decoded; None where they can

    def prepare(self, prompts: object) -> Tensor:
        """Convert the user's prompts to a condition per image: int64 [B], or features float [B, P, C]."""

    def condition(
        self,
        tokens: Tensor,  # float [B, L, d]
        mask: Tensor,  # bool [B, L], True where masked; the values there are not read
        labels: Tensor,
        paired: bool,
        wanted: Tensor | None = None,  # int64 [B, N], the positions that are read, L for none; others may be skipped
        slots: DecoderPass = FULL_PASS,  # the tokens to compute, rows [C * B], the conditional branch first
    ) -> Tensor:
        """Return z [C, B, L, width] of C branches: 1, or 2 with the unconditional branch (`paired`)."""

    def head(self, num_sampling_steps: str | int | None = None) -> Head:
        """Return the head with a number of denoising steps, None for the model's own."""

    def decode(self, tokens: Tensor) -> Tensor:
        """Return pixels float32 [B, 3, H, W] in 0..1 of tokens float [B, L, d]."""


Schedule = Literal["linear", "constant"]


@dataclass(frozen=True, slots=True)
class TokenGuidance:
    """Classifier-free guidance. "linear" goes from about 1 at the first token to s at the last: 1 + (s - 1) (total -
    masked) / total, where a step leaves `masked` tokens masked."""

    scale: float = 1.0  # s; at exactly 1 only the conditional branch runs
    schedule: Schedule = "linear"

    def __post_init__(self) -> None:
        number("guidance_scale", self.scale, 0, LARGEST_SCALE)
        if self.schedule not in get_args(Schedule):
            raise ValueError(
                f"guidance_schedule: expected one of {', '.join(get_args(Schedule))}, got {self.schedule!r}; use "
                "one of these"
            )
        check_fields(self)

    @property
    def paired(self) -> bool:
        return self.scale != 1

    def at(self, masked: int, total: int) -> float:
        """Return the scale of a step that leaves `masked` of `total` tokens masked."""
        return self.scale if self.schedule == "constant" else 1 + (self.scale - 1) * (total - masked) / total

    def by_rank(self, steps: Sequence[GenerationStep], total: int) -> Tensor:
        """Return float32 [total], the scale of the token at each rank of the order, in whichever round it is drawn."""
        scales = torch.empty(total)
        for step in steps:
            scales[step.first : step.last] = self.at(step.masked, total)
        return scales


class MaskedTarget(MaskFilledTarget):
    """A batch of images that is filled, each row in its own order; a pass sees all known tokens and no others.
    `Draft.index` has the position of every node, L for padding; a valid node holds a drafted value, others ask for a
    value. A correction float [B, N, d] goes to the open nodes that are not accepted. No row depends on another row."""

    not_finite = "expected finite tokens, got NaN or Inf"

    def __init__(
        self,
        model: MaskedModel,
        labels: Tensor,
        *,
        num_sampling_steps: str | int | None,
        steps: Sequence[GenerationStep],
        guidance: TokenGuidance,
        temperature: float,
        order: Tensor,
        noise: Noise,
        listener: Listener | None = None,
        head_sampling: HeadSampling | None = None,
        windows: Sequence[int] | None = None,
        keys: Keys | None = None,
    ):
        """`order` int64 [B, L] is consumed from its end; a drafter that shares `noise` has aligned trajectories."""
        super().__init__(len(labels), model.total, torch.zeros(model.dim, device=model.device), listener)
        self.model, self.labels, self.plan = model, labels, tuple(steps)
        self.num_sampling_steps, self.head = num_sampling_steps, model.head(num_sampling_steps)
        self.head_sampling, self.keys, self.head_calls = head_sampling or HeadSampling(), keys, 0
        self.head_sampling.check(temperature)
        self.temperature, self.noise = temperature, noise
        self.order, self.rank = order, ranks(order)  # int64 [B, L], each position's rank in the order
        self.scales = None  # float32 [B, L], the guidance scale of each position, given by its rank
        if guidance.paired:
            self.scales = guidance.by_rank(self.plan, self.total).to(order.device)[self.rank]
        counts = self.head_sampling.counts(self.plan, self.total, noise.steps, windows)
        self.counts = None if counts is None else counts.to(order.device)[self.rank]  # denoising steps [B, L]

    @torch.no_grad()
    def prefill(self) -> tuple[Draft, Evidence]:
        """Run the first step; there is no prompt before it."""
        draft = self.open_draft(self.next_positions())
        return draft, self.score(draft)

    def next_positions(self) -> Tensor:
        """Return int64 [B, N], the positions of each row's next step of plain decoding, ascending in the order."""
        left = [room if live else 0 for room, live in zip(self.room, self.live, strict=True)]
        ends = self.step_ends(left)
        count = [rest - end for rest, end in zip(left, ends, strict=True)]
        most = max(count)
        # the last unknown positions in the order; a drafter may have left holes
        rank = self.rank.masked_fill(self.known, -1).topk(most).values.flip(-1)
        position = self.order.gather(1, rank.clamp_min(0))
        wanted = torch.arange(most, device=rank.device) >= most - torch.tensor(count, device=rank.device)[:, None]
        return torch.where(wanted, position, self.total)

    def step_ends(self, left: list[int]) -> list[int]:
        """Return for each row with `left` open tokens how many stay open after the next step of the plan."""
        return [next((step.first for step in self.plan if step.first < rest), rest) for rest in left]

    def open_draft(self, position: Tensor) -> Draft:
        """Return a draft without drafted values, whose nodes ask for the values at `position` int64 [B, N]."""
        value = self.values.new_zeros(*position.shape, self.model.dim)
        shape = chains((0,) * position.shape[1], position.device)
        return Draft(value, shape, Law("none"), torch.zeros_like(position, dtype=torch.bool), position)

    @torch.no_grad()
    def score(self, draft: Draft) -> TokenEvidence:
        place = draft.index.clamp(max=self.total - 1)
        drawn, shape = self.draw(self.head, self.conditions(draft, place), draft.index), (*place.shape, -1)
        value, mean = drawn.value.view(shape), drawn.last.mean.view(shape)
        bad = ~(value.isfinite() & mean.isfinite()).all(-1) & (draft.index < self.total)
        own, mean = (x.masked_fill(bad[..., None], 0) for x in (value, mean))
        return TokenEvidence(mean=mean, bad=bad, own=own, trajectory=drawn)

    def conditions(self, draft: Draft, place: Tensor) -> Tensor:
        """Return z [C, B, N, width] of a draft's nodes at positions int64 [B, N], given the known tokens and no drafts."""
        z = self.model.condition(self.values, ~self.known, self.labels, self.scales is not None, draft.index)
        return torch.stack([gather_nodes(branch, place) for branch in z])

    def draw(self, head: Head, z: Tensor, index: Tensor) -> Trajectory:
        """Return trajectories [B * N] of z [C, B, N, width] at int64 [B, N]; a shorter head uses its steps' noise."""
        place = index.clamp(max=self.total - 1)
        initial, noise = (x.flatten(0, 1) for x in self.noise.at(place))
        guidance = None if self.scales is None else self.scales.gather(1, place).flatten()
        keys = None if self.keys is None else self.keys.at(place)
        request = HeadRequest(z.flatten(1, 2), initial, noise, guidance, self.temperature, keys)
        counts = None
        if self.counts is not None:
            pads, counts = index == self.total, self.counts.gather(1, place)
            # padding gets an existing count, so that it adds no run of the head
            counts = counts.where(~pads, counts.masked_fill(pads, 0).amax()).flatten()
        drawn = self.head_sampling.draw(head, request, counts)
        self.head_calls += request.calls
        return drawn

    def settle(self, draft: Draft, verdict: Verdict, runs: Tensor) -> Tensor:
        fed = (draft.index < self.total) & runs[:, None]
        keep = verdict.keep & fed
        fill = fed if draft.open is None else fed & draft.open
        place = torch.where(keep | fill, draft.index, self.total)
        self.put(place, torch.where(keep[..., None], draft.value, verdict.correction))
        return keep.sum(1)
