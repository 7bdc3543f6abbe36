"""The target's side of a request for videos: rows that commit a block a round, each by its own verdict."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mmspec.core.batch_target import BatchTarget
from mmspec.core.draft import Draft, root_only
from mmspec.core.verdict import Verdict
from mmspec.video.decoding.evidence import BlockEvidence
from mmspec.video.decoding.judging import Judging
from mmspec.video.decoding.row import Decoded, FilmRow
from mmspec.video.decoding.script import Script
from mmspec.video.decoding.stats import VideoStats
from mmspec.video.model import BlockVideoModel
from mmspec.video.rewards.scores import NotFinite
from mmspec.video.rewards.views import to_bytes
from mmspec.video.routing.features import FEATURES, features
from mmspec.video.routing.router import Place
from mmspec.video.text import Reader
from mmspec.video.vae.stream import StreamingVAE

# (row, block, frames uint8 [N, H, W, 3] or None where no pixels are asked for), once the block is finished
Listener = Callable[[int, int, np.ndarray | None], None]


class BlockTarget(BatchTarget):
    """A batch of videos; values are handles of blocks, whose latents lie in `rows`. No row's numbers depend on another row.

    model: draws the blocks that no draft stands for.   script: what is asked for.   read: texts for the model.
    judging: how drafts are scored; see `Judging`.   eager: whether a committed block is read at once instead of when the model
    draws next: more passes, but a rejection waits for none. The blocks are the same.
    pixels: whether frames are kept; without them only what a router looks at is decoded.
    stats: where seconds and records go.   listener: called for every row's block once it is committed.
    Where latents, frames or scores are NaN or Inf the row stops, with its finished blocks and a sentence in `errors`.
    """

    verdicts = ("regenerate",)

    def __init__(
        self, model: BlockVideoModel, vae: StreamingVAE, script: Script, read: Reader, judging: Judging, *,
        eager: bool = False, pixels: bool = True, stats: VideoStats, listener: Listener | None = None,
    ):  # fmt: skip
        super().__init__(len(script.prompts))
        self.model, self.vae, self.script, self.read, self.judging = model, vae, script, read, judging
        self.eager, self.pixels, self.stats, self.listener = eager, pixels, stats, listener
        self.device = script.keys.seeds.device
        self.rows = [FilmRow(state) for state in script.open(model, read)]
        self.pending = torch.full((self.batch,), -1, device=self.device)
        stats.records = [row.records for row in self.rows]

    @property
    def emitted(self) -> list[int]:
        return [len(row.film) for row in self.rows]

    @property
    def block(self) -> int:
        """The number of the block that is drawn next: the same in every row that has not stopped."""
        return max(len(row.film) for row, live in zip(self.rows, self.live, strict=True) if live)

    def place(self, row: int, uniform: float) -> Place:
        """What a router is told before a block is drafted."""
        film = self.rows[row]
        return Place(row, len(film.film), self.script.blocks, film.made, film.run, uniform)

    def settle(self, device: torch.device) -> None:
        """Waits for a device, so that seconds are those of the part that took them; not where work runs on two of them, which
        would wait for each other."""
        devices = {torch.device(one) for one in (device, self.device, getattr(self.vae, "device", self.device))}
        if len(devices) == 1 and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def prefill(self) -> tuple[Draft, BlockEvidence]:
        return root_only(self.pending), self._evidence(1)

    def score(self, draft: Draft) -> BlockEvidence:
        """Decodes the drafted blocks, each from its row's place in the autoencoder, and scores their frames."""
        nodes = draft.value.shape[1]
        evidence = self._evidence(nodes)
        if nodes == 1:
            return evidence
        drafted = (draft.valid if draft.valid is not None else torch.ones_like(draft.value, dtype=torch.bool))[:, 1]
        handles = draft.value[:, 1].tolist()
        for row, (handle, there) in enumerate(zip(handles, drafted.tolist(), strict=True)):
            if there and self.live[row]:
                self.rows[row].record.drafted = True
                self._attempt(row, lambda row=row, handle=handle: self._judge(row, handle, evidence))
        return evidence

    def regenerate(self, draft: Draft, verdict: Verdict) -> Tensor:
        made = [-1] * self.batch
        for row, redo in enumerate(verdict.redo.tolist()):
            if redo and self.live[row]:
                film = self.rows[row]
                made[row] = film.put(film.state.generate(film.film), drafted=False)
                self._count()
        self.settle(self.model.device)
        return torch.tensor(made, device=self.device)

    def commit(self, draft: Draft, evidence: BlockEvidence, verdict: Verdict) -> list[int | None]:
        handle = torch.where(verdict.redo, verdict.correction, draft.value[:, -1])
        accepted: list[int | None] = []
        for row, (one, redo) in enumerate(torch.stack((handle, verdict.redo), 1).tolist()):
            took = self.live[row] and self._attempt(
                row, lambda row=row, one=one, redo=redo: self._take(row, one, not redo)
            )
            accepted.append(int(not redo) if took else None)
        self.pending = handle
        return accepted

    def _attempt(self, row: int, work: Callable[[], None]) -> bool:
        """Whether a row's work could be done; else the row has stopped and its candidates are gone."""
        try:
            work()
        except NotFinite as error:
            self.rows[row].clear()
            self.fail(row, str(error), f"{len(self.rows[row].film)} of {self.script.blocks} blocks")
            return False
        return True

    def _judge(self, row: int, handle: int, evidence: BlockEvidence) -> None:
        film, judging, router = self.rows[row], self.judging, self.judging.router
        _check(film.slots[handle])
        evidence.run[row] = film.run
        if not router.judges:
            return
        frames = self._decode(film, handle)
        scores = self._scores(row, frames)
        film.record.scores = scores.tolist()
        evidence.reward[row, 1] = judging.reduced(scores)
        if film.anchor is not None:
            evidence.anchor[row] = judging.reduced(film.anchor)
        if router.looks:
            latents, done = (film.film[-1], film.slots[handle]), len(film.film) / self.script.blocks
            found = features(scores, film.anchor, latents, (film.frames[-1], frames), done, film.run)
            film.record.features = found.tolist()
            evidence.features[row] = found.to(self.device)

    def _take(self, row: int, handle: int, kept: bool) -> None:
        film, router, block = self.rows[row], self.judging.router, len(self.rows[row].film)
        _check(film.slots[handle])
        if self.pixels or router.judges:
            frames = self._decode(film, handle)
        begins = block in self.script.anchors
        if not kept and router.judges and (router.scores_own == "all" or begins and router.scores_own == "anchors"):
            scores = self._scores(row, frames)
            film.record.own_scores = scores.tolist()
            if begins:
                film.anchor = scores
        film.take(handle, kept)
        self.live[row] = block + 1 < self.script.blocks
        if self.listener is not None:
            self.listener(row, block, film.frames[-1].permute(0, 2, 3, 1).numpy() if self.pixels else None)
        if self.eager and self.live[row]:
            with self.stats.time("target"):
                film.state.absorb(film.film)
                self.settle(self.model.device)
            self._count()

    def _decode(self, film: FilmRow, handle: int) -> Tensor:
        """Frames of a candidate, uint8 [N, 3, H, W] on the host; its row's place stays where it is."""
        if handle not in film.decoded:
            with self.stats.time("vae"):
                frames, after = self.vae.decode(film.slots[handle], film.place)
                after = None if self.model.plan.apart else after
                if not frames.isfinite().all():
                    raise NotFinite("expected finite pixels, got NaN or Inf")
                film.decoded[handle] = Decoded(to_bytes(frames[0].transpose(0, 1)).cpu(), after)
        return film.decoded[handle].frames

    def _scores(self, row: int, frames: Tensor) -> Tensor:
        with self.stats.time("reward"):
            return self.judging.scores(frames, self.script.text(row, len(self.rows[row].film))).cpu()

    def _count(self) -> None:
        self.stats.target_forwards = sum(row.state.passes for row in self.rows)
        self.stats.context_forwards = sum(row.state.context_passes for row in self.rows)

    def _evidence(self, nodes: int) -> BlockEvidence:
        """Of blocks that nobody scored."""

        def unknown(*shape: int) -> Tensor:
            return torch.full((self.batch, *shape), torch.nan, device=self.device)

        run = torch.zeros(self.batch, dtype=torch.long, device=self.device)
        return BlockEvidence(reward=unknown(nodes), anchor=unknown(), run=run, features=unknown(len(FEATURES)))


def _check(latents: Tensor) -> None:
    if not latents.isfinite().all():
        raise NotFinite("expected finite latents, got NaN or Inf")
