"""The state of a drafter that is a part of the target and has no weights: its chain, and the head on its states."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.drafting.growth import DraftBudget, grow_draft
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import LengthControl
from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.core.round.pool import SlotPool
from mmspec.vlm.partial_passes import SubLayer, read_ahead
from mmspec.vlm.target import TextTarget


class SelfDraftState:
    """Base of the states of drafters that run some of the target's layers, then its final norm and head. The keys and
    values of a draft lie in the target's cache behind the committed length, where the next pass of the target replaces
    them. A subclass sets `layers` before each draft: an end, and the sub-layers before it that are left out. `states`,
    [B, 1, H] each, are those of the root and the drafted tokens so far; `root`, [B, H], is the root's."""

    independent, ids = False, None

    def __init__(self, target: TextTarget, length: LengthControl):
        self.target, self.shape, self.deepest = target, Chain(length), length.longest
        self.layers: tuple[int, frozenset[SubLayer]] = (target.parts.layers, frozenset())
        self.states: list[Tensor] = []
        self.root: Tensor | None = None
        self.passes = 0
        ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        ruling[list(target.parts.placeholders)] = -torch.inf
        self.ruling = target.processors.suppress(ruling)

    @property
    def cache(self) -> SlotPool:
        """The target's cache, whose committed lengths a draft leaves alone."""
        return self.target.cache

    def choose_part(self) -> None:
        """Set the part that makes the next draft. The choice must not depend on unverified values."""

    def enter(self, token: Tensor) -> Tensor:
        """Run the part over the next token of the draft, int64 [B, n]; return its state [B, n, H]."""
        end, skipped = self.layers
        self.passes += 1
        embeds = self.target.parts.embed(token)
        self.states.append(read_ahead(self.target, embeds, len(self.states), 0, end, skipped))
        return self.states[-1]

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """Return the head's float32 logits [B, n, V] of states [B, n, H], without visual placeholders."""
        parts = self.target.parts
        return parts.head(parts.decoder.norm(out)).float() + self.ruling

    def law(self, out: Tensor, depth: int) -> Tensor:
        return self.target.processors.warp(self.logits(out, depth))

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return out

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        return self.enter(token)

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        depth = self.deepest if longest is None else min(self.deepest, longest)
        budget = DraftBudget(depth, target.rooms(depth))
        if budget.is_empty:
            return root_only(target.pending)
        self.choose_part()
        self.states = []
        self.root = self.enter(target.pending[:, None])[:, 0]
        return grow_draft(self, target, self.shape, keys, budget)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Learn nothing."""
