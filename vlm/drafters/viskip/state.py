"""One request of ViSkip: how much every row's next token leans on the pictures, and what it then drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.draft import Draft, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.verdict import Verdict
from mmspec.vlm.drafters.feature_state import FeatureState
from mmspec.vlm.drafters.flash.modules import SarHead
from mmspec.vlm.target import TextTarget

if TYPE_CHECKING:
    from mmspec.vlm.drafters.viskip.drafter import VisionSkip


class VisionSkipState:
    """One request. skipped: rows left out so far, summed over rounds."""

    def __init__(self, control: VisionSkip, inner: FeatureState, target: TextTarget):
        self.control = control
        self.inner, self.threshold, self.skipped = inner, control.threshold, 0
        placeholders = torch.tensor(target.parts.placeholders, device=target.device)
        self.shown = bool(torch.isin(target.prompt, placeholders).any())
        self.name, self.checked = control.drafter.name, not self.shown

    @property
    def passes(self) -> int:
        return self.inner.passes

    def follow(self, target: TextTarget) -> VisionSkipState:
        """The state of a request that goes on from this one."""
        return VisionSkipState(self.control, self.inner.follow(target), target)

    @property
    def deepest(self) -> int | None:
        return self.inner.deepest

    @property
    def longest(self) -> int | None:
        return self.inner.longest

    @longest.setter
    def longest(self, longest: int | None) -> None:
        self.inner.longest = longest

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        if not self.shown:
            return self.inner.propose(target, keys)
        if not any(target.rooms(1)):
            return root_only(target.pending)
        if not self.checked:
            self._check()
        self.inner.ready()
        leans = reliance(self.inner) > self.threshold
        skips = [leaning and alive for leaning, alive in zip(leans.tolist(), target.live, strict=True)]
        self.skipped += sum(skips)
        if sum(skips) == sum(target.live):
            return root_only(target.pending)
        draft = self.inner.propose(target, keys)
        if any(skips):
            stays = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
            stays[:, 1:] &= ~leans[:, None]
            draft.valid = stays
        return draft

    def _check(self) -> None:
        ready = getattr(self.inner, "ready", None)
        if ready is not None:
            ready()
        kept = getattr(self.inner, "pictures", None)
        if kept is None or not bool(kept.any()):
            raise ValueError(f"drafter: expected one that keeps slots of the prompt's pictures, got {self.name!r}, which "
                             "keeps none; wrap one that does, as msd or vispec")  # fmt: skip
        self.checked = True

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(target, draft, evidence, verdict)


@torch.no_grad()
def reliance(state: FeatureState) -> Tensor:
    """How much each row's newest committed slot leans on pictures: the share of its attention their slots get, mean over
    the heads, float32 [B]. Asked right after `ready`. Rows that have stopped hold anything."""
    attend, position = state.latest
    layer, cache = state.drafter.layer, state.cache
    row = torch.arange(attend.shape[0], device=attend.device)
    last = torch.tensor([max(n - 1, 0) for n in state.counts], device=attend.device)
    at = position[row % position.shape[0], last]
    query, _, _ = layer.heads(attend[row, last][:, None], state.rotary[at][:, None])
    keys = cache.at(0)[0][:, :, : cache.width]
    query, groups = query.flatten(1, 2), keys.shape[1]
    if isinstance(layer, SarHead):  # every head reads every group
        query = query[:, None].expand(-1, groups, -1, -1)
    else:
        query = query.unflatten(1, (groups, -1))
    scores = (query @ keys.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if not cache.uniform:
        beyond = torch.arange(cache.width, device=keys.device) >= cache.length[:, None]
        scores = scores.masked_fill(beyond[:, None, None], -torch.inf)
    width = state.pictures.shape[1]
    share = scores.softmax(-1)[..., :width].mean((1, 2))
    return (share * state.pictures[:, : share.shape[1]]).sum(-1)
