"""The target of a request for videos: every row commits a block per round, by its own verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.round.batch_target import BatchTarget
from mmspec.core.round.draft import Draft, Verdict, root_only
from mmspec.video.decoding.output import VideoStats
from mmspec.video.decoding.request import DecodedBlock, VideoRequest, VideoRowState
from mmspec.video.model import BlockVideoModel
from mmspec.video.rewards.scores import NotFinite, Reduction, Reward, reduced, scored, to_bytes
from mmspec.video.routing.learned import FEATURES, draft_features
from mmspec.video.routing.routers import BlockEvidence, BlockPosition, Router


@dataclass(frozen=True, slots=True)
class RewardScoring:
    reward: Reward | None = None  # None for a router that reads no score
    reduction: Reduction = "min"


class BlockTarget(BatchTarget):
    """A batch of videos; values are handles of blocks whose latents are in `rows`, and no row depends on another. A row
    stops at latents, frames or scores that are NaN or Inf: it keeps its finished blocks, and `errors` has a sentence.
    `eager` reads a committed block at once: more passes, but a rejection does not wait for them. The blocks are the
    same."""

    verdicts = ("regenerate",)

    def __init__(
        self,
        model: BlockVideoModel,
        request: VideoRequest,
        router: Router,
        scoring: RewardScoring | None = None,
        *,
        eager: bool = False,
    ):
        super().__init__(len(request.prompts))
        self.model, self.request, self.router, self.eager = model, request, router, eager
        self.scoring = RewardScoring() if scoring is None else scoring
        self.device = request.keys.seeds.device
        self.rows = [VideoRowState(state) for state in request.open(model, request.read)]
        self.pending = torch.full((self.batch,), -1, device=self.device)
        self.stats = VideoStats(records=[row.records for row in self.rows])

    @property
    def emitted(self) -> list[int]:
        return [len(row.committed) for row in self.rows]

    @property
    def block(self) -> int:
        return max(len(row.committed) for row, live in zip(self.rows, self.live, strict=True) if live)

    def position(self, row: int, uniform: float) -> BlockPosition:
        video = self.rows[row]
        return BlockPosition(row, len(video.committed), self.request.blocks, video.target_blocks, video.run, uniform)

    def wait_for(self, device: torch.device) -> None:
        """Wait for a device, so that its time counts for the right part; a no-op where two devices work in parallel."""
        used = (device, self.device, getattr(self.request.vae, "device", self.device))
        devices = {torch.device(place) for place in used}
        if len(devices) == 1 and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def prefill(self) -> tuple[Draft, BlockEvidence]:
        return root_only(self.pending), self._evidence(1)

    def score(self, draft: Draft) -> BlockEvidence:
        """Decode each drafted block from its row's autoencoder state and score the frames."""
        nodes = draft.value.shape[1]
        evidence = self._evidence(nodes)
        if nodes == 1:
            return evidence
        drafted = (draft.valid if draft.valid is not None else torch.ones_like(draft.value, dtype=torch.bool))[:, 1]
        handles = draft.value[:, 1].tolist()
        for row, (handle, there) in enumerate(zip(handles, drafted.tolist(), strict=True)):
            if there and self.live[row]:
                self.rows[row].record.drafted = True
                self._attempt(row, self._verify, handle, evidence)
        return evidence

    def regenerate(self, draft: Draft, verdict: Verdict) -> Tensor:
        handles = [-1] * self.batch
        for row, redo in enumerate(verdict.redo.tolist()):
            if redo and self.live[row]:
                video = self.rows[row]
                handles[row] = video.put(video.state.generate(video.committed), drafted=False)
                self._count()
        self.wait_for(self.model.device)
        return torch.tensor(handles, device=self.device)

    def commit(self, draft: Draft, evidence: BlockEvidence, verdict: Verdict) -> list[int | None]:
        handle = torch.where(verdict.redo, verdict.correction, draft.value[:, -1])
        accepted: list[int | None] = []
        for row, (chosen, redo) in enumerate(torch.stack((handle, verdict.redo), 1).tolist()):
            committed = self.live[row] and self._attempt(row, self._commit_row, chosen, not redo)
            accepted.append(int(not redo) if committed else None)
        self.pending = handle
        return accepted

    def _attempt(self, row: int, work: Callable[..., None], *arguments: Any) -> bool:
        """Run a row's work; return False where it fails, after the row has stopped and lost its candidates."""
        try:
            work(row, *arguments)
        except NotFinite as error:
            self.rows[row].clear()
            self.fail(row, str(error), f"{len(self.rows[row].committed)} of {self.request.blocks} blocks")
            return False
        return True

    def _verify(self, row: int, handle: int, evidence: BlockEvidence) -> None:
        video = self.rows[row]
        _check_finite(video.slots[handle])
        evidence.run[row] = video.run
        if not self.router.needs.reward:
            return
        frames = self._decode(video, handle)
        scores = self._scores(row, frames)
        video.record.scores = scores.tolist()
        evidence.reward[row, 1] = reduced(scores, self.scoring.reduction)
        if video.anchor is not None:
            evidence.anchor[row] = reduced(video.anchor, self.scoring.reduction)
        if self.router.needs.features:
            latents, done = (video.committed[-1], video.slots[handle]), len(video.committed) / self.request.blocks
            features = draft_features(scores, video.anchor, latents, (video.frames[-1], frames), done, video.run)
            video.record.features = features.tolist()
            evidence.features[row] = features.to(self.device)

    def _commit_row(self, row: int, handle: int, kept: bool) -> None:
        video, request, needs = self.rows[row], self.request, self.router.needs
        block = len(video.committed)
        begins = block in request.anchors
        _check_finite(video.slots[handle])
        if request.pixels or needs.reward:
            frames = self._decode(video, handle)
        if needs.reward and not kept and (needs.target_blocks == "all" or begins and needs.target_blocks == "anchors"):
            scores = self._scores(row, frames)
            video.record.own_scores = scores.tolist()
            if begins:
                video.anchor = scores
        video.commit(handle, kept)
        self.live[row] = block + 1 < request.blocks
        if request.listener is not None:
            request.listener(row, block, video.frames[-1].permute(0, 2, 3, 1).numpy() if request.pixels else None)
        if self.eager and self.live[row]:
            with self.stats.time("target"):
                video.state.absorb(video.committed)
                self.wait_for(self.model.device)
            self._count()

    def _decode(self, video: VideoRowState, handle: int) -> Tensor:
        """Return a candidate's frames, uint8 [N, 3, H, W] on the host, without a change of the row's state."""
        if handle not in video.decoded:
            with self.stats.time("vae"):
                frames, after = self.request.vae.decode(video.slots[handle], video.vae_state)
                after = None if self.model.plan.apart else after
                if not frames.isfinite().all():
                    raise NotFinite("expected finite pixels, got NaN or Inf")
                video.decoded[handle] = DecodedBlock(to_bytes(frames[0].transpose(0, 1)).cpu(), after)
        return video.decoded[handle].frames

    def _scores(self, row: int, frames: Tensor) -> Tensor:
        with self.stats.time("reward"):
            return scored(self.scoring.reward, frames, self.request.text(row, len(self.rows[row].committed))).cpu()

    def _count(self) -> None:
        self.stats.target_forwards = sum(row.state.passes for row in self.rows)
        self.stats.context_forwards = sum(row.state.context_passes for row in self.rows)

    def _evidence(self, nodes: int) -> BlockEvidence:
        def unknown(*shape: int) -> Tensor:
            return torch.full((self.batch, *shape), torch.nan, device=self.device)

        run = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        return BlockEvidence(reward=unknown(nodes), anchor=unknown(), run=run, features=unknown(len(FEATURES)))


def _check_finite(latents: Tensor) -> None:
    if not latents.isfinite().all():
        raise NotFinite("expected finite latents, got NaN or Inf")
