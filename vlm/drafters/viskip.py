"""ViSkip: no draft in rounds whose next token depends on the pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict, root_only
from mmspec.core.round.keys import Keys
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.drafters.flash.head import SarHead
from mmspec.vlm.target import TextTarget


class VisionSkip:
    """Skips the draft where the next token depends on the pictures, in the manner of ViSkip.

    Paper: "MMSpec: Benchmarking Speculative Decoding for Vision-Language Models". Exact whenever the drafter is: the
    decision precedes every draw.

    Args:
        drafter: A feature drafter that keeps slots of pictures, whole or compressed.
        threshold: Rows whose newest slot gives pictures a larger share of its attention get no draft in this round.

    Raises:
        ValueError: The threshold is outside [0, 1]. A request raises it too if the drafter keeps no slot of its
            pictures.
    """

    def __init__(self, drafter: object, threshold: float = 0.3):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold: expected a share of attention in [0, 1], got {threshold}")
        self.drafter, self.threshold = drafter, threshold
        self.name = f"viskip({drafter.name})"

    @property
    def levels(self) -> tuple[int, ...] | None:
        """The target's states that the drafter reads."""
        return getattr(self.drafter, "levels", None)

    def open(self, target: TextTarget) -> VisionSkipState:
        return VisionSkipState(self, self.drafter.open(target), target)

    def open_without_prefill(self, target: TextTarget) -> VisionSkipState:
        """Return the state of a request whose prompt is read before the first draft."""
        open_lazily = getattr(self.drafter, "open_without_prefill", None) or self.drafter.open
        return VisionSkipState(self, open_lazily(target), target)


class VisionSkipState:
    """`skipped` counts the rows without a draft, summed over rounds."""

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
        return VisionSkipState(self.control, self.inner.follow(target), target)

    @property
    def deepest(self) -> int | None:
        return self.inner.deepest

    def propose(self, target: TextTarget, keys: Keys, *longest: int) -> Draft:
        if not self.shown:
            return self.inner.propose(target, keys, *longest)
        if not any(target.rooms(1)):
            return root_only(target.pending)
        if not self.checked:
            self._check()
        budget = self.inner.draft_budget(*longest)
        self.inner.ready(budget.depth)
        leans = reliance(self.inner) > self.threshold
        skips = [leaning and alive for leaning, alive in zip(leans.tolist(), target.live, strict=True)]
        self.skipped += sum(skips)
        if sum(skips) == sum(target.live):
            return root_only(target.pending)
        draft = self.inner.draft(target, keys, budget)
        if any(skips):
            stays = torch.ones_like(draft.value, dtype=torch.bool) if draft.valid is None else draft.valid.clone()
            stays[:, 1:] &= ~leans[:, None]
            draft.valid = stays
        return draft

    def _check(self) -> None:
        ready = getattr(self.inner, "ready", None)
        if ready is not None:
            ready()
        pictures = getattr(self.inner, "pictures", None)
        if pictures is None or not bool(pictures.any()):
            raise ValueError(
                f"drafter: expected a drafter that keeps slots of the prompt's pictures, got {self.name!r}, "
                "which keeps none; wrap a drafter such as msd or vispec"
            )
        self.checked = True

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(target, draft, evidence, verdict)


@torch.no_grad()
def reliance(state: FeatureState) -> Tensor:
    """Return the share of attention that each row's newest committed slot gives to picture slots, float32 [B], a mean
    over the heads. It is defined right after `ready`; rows that have stopped have any value."""
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
