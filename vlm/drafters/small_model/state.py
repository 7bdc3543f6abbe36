"""One request of a smaller model: its cache over the prompt and the answer, and the chains it proposes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.draft import Draft, root_only
from mmspec.core.drafting.grow import chain_of
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys, Purpose
from mmspec.core.sample import draw, law_of
from mmspec.core.verdict import Verdict
from mmspec.vlm.drafters.limits import forbid, text_rows
from mmspec.vlm.drafters.small_model.context import Context
from mmspec.vlm.prompts import prepare
from mmspec.vlm.target import TextTarget

if TYPE_CHECKING:
    from mmspec.vlm.drafters.small_model.drafter import SmallModel


class SmallModelState:
    """One request. taken: per row, generated tokens the model has read; ahead: drafted tokens it has read on top.

    longest: at most so many tokens in the next draft, None for as many as `length` allows.   deepest: what it may ask for.
    """

    def __init__(self, drafter: SmallModel, target: TextTarget):
        self.parts, self.length = drafter.parts, drafter.length
        room = min(target.stopping.most or 512, 512) + self.length.longest
        self.context = Context(self.parts, target.prompt.shape[1] + room)
        self.taken, self.ahead = [0] * target.batch, 0
        self.deepest, self.longest = self.length.longest, None

    def prefill(self, target: TextTarget) -> None:
        """Reads the prompt."""
        _read_prompt(self.context, target)

    @property
    def passes(self) -> int:
        return self.context.passes

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        rooms = target.rooms(self.deepest if self.longest is None else min(self.longest, self.deepest))
        if not any(rooms):
            return root_only(target.pending)
        if self.context.next_position is None:
            self.prefill(target)
        room = torch.tensor(rooms, device=target.device)
        logits, growing = self._catch_up(target), room > 0
        tokens, valid, laws = [], [], []
        growth = self.length.begin()
        for step in range(max(rooms)):
            if step:
                logits = self._read(tokens[-1][:, None], [1] * target.batch)
                self.ahead += 1
            scores, sound = self._scores(logits, target)
            growing = growing & sound & (room > step)
            if growth is not None:
                growing = growing & growth.grow(step, law_of(scores).amax(-1), self.context.feature)
            if not growing.any():
                break
            tokens.append(scores.argmax(-1) if target.greedy else draw(scores, keys.uniform(Purpose.DRAFT, step=step)))
            valid.append(growing)
            laws.append(scores)
        return chain_of(target, tokens, [] if target.greedy else laws, valid) if tokens else root_only(target.pending)

    def _catch_up(self, target: TextTarget) -> Tensor:
        """Reads what was committed since: the correction, and the last drafted token when all were kept."""
        news = [t[n:] if alive else [] for t, n, alive in zip(target.tokens, self.taken, target.live, strict=True)]
        counts = [len(new) for new in news]
        ids = torch.tensor([new + [0] * (max(counts) - len(new)) for new in news], device=target.device)
        self.taken = [n + count for n, count in zip(self.taken, counts, strict=True)]
        return self._read(ids, counts)

    def _read(self, ids: Tensor, counts: list[int]) -> Tensor:
        # ids only the target has cannot be embedded; any stand-in does, as the target judges what comes of it
        return self.context.read(torch.where(ids < self.parts.vocab_size, ids, 0), counts)

    def _scores(self, logits: Tensor, target: TextTarget) -> tuple[Tensor, Tensor]:
        """float32 [B, V], the log-weights of the next draft, and bool [B], False where the model gave NaN or Inf."""
        sound = logits.amax(-1).isfinite()
        logits = torch.where(sound[:, None], logits, 0.0)
        beyond = target.parts.vocab_size - logits.shape[-1]
        logits = torch.nn.functional.pad(logits, (0, beyond), value=float("-inf"))
        return target.processors.warp(forbid(logits, target)), sound

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Forgets what was read of rejected drafts; a row keeps what it read of the accepted run."""
        kept = [
            min(len(tokens) - n - 1, self.ahead) if alive else 0
            for tokens, n, alive in zip(target.tokens, self.taken, target.live, strict=True)
        ]
        if self.ahead:
            self.context.forget([self.ahead - n for n in kept])
            self.taken = [n + k for n, k in zip(self.taken, kept, strict=True)]
        self.ahead = 0


def _read_prompt(context: Context, target: TextTarget) -> None:
    if context.parts.placeholders:
        if target.inputs is None:
            raise ValueError("model: expected the pictures of the prompt for a vision-language drafter, got none; call "
                             "mmspec.generate or pass mmspec.decode to model.generate itself")  # fmt: skip
        ids, kwargs = prepare(context.parts.model, target.inputs)
        context.prefill(ids, kwargs.pop("attention_mask", None), **kwargs)
        return
    rows = [row or [0] for row in text_rows(target, context.parts.vocab_size)]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=target.device)
    slot = torch.arange(longest, device=target.device)
    start = torch.tensor([longest - len(row) for row in rows], device=target.device)[:, None]
    mask = (slot >= start).long() if min(map(len, rows)) < longest else None
    context.prefill(ids, mask, position_ids=(slot - start).clamp(min=0))
