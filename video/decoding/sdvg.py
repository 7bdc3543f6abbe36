"""Speculative decoding of video blocks: a small model drafts each block, a router selects blocks to regenerate."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules.base import UnsupportedCombination
from mmspec.core.round.tree import chain
from mmspec.io.validation import Range, check_fields
from mmspec.methods import MethodParts, method, value_of
from mmspec.video.decoding.block_drafter import check_drafter, model_of, reader_of
from mmspec.video.decoding.request import VideoRequest
from mmspec.video.decoding.target import BlockTarget, RewardScoring
from mmspec.video.model import BlockVideoModel
from mmspec.video.rewards.scores import Reduction, Reward
from mmspec.video.routing.routers import Router, ScoringNeeds, Threshold
from mmspec.video.wan.rebuilt import Rebuilt


@dataclass(frozen=True, slots=True)
class SDVG:
    """Drafts every block except those that begin a prompt, scores the frames, and regenerates the rejected blocks.

    Paper: "Speculative Decoding for Autoregressive Video Generation". Relaxed; with an infinite threshold the videos
    are the target's own, bit for bit. Both models generate a block from the same reserved noise.

    Args:
        drafter: A model with the target's latents and plan of blocks, or a pipeline of such a model.
        reward: A function from frames and prompt to scores; not needed for a router that reads no score.
        threshold: The score that a draft needs, see `Threshold`. Pass this or `router`.
        router: `Relative`, `Strided`, `Random`, `Hybrid`, `Learned` and others, or a text such as "strided:budget=3".
        reduction: How a block's score follows from its frames: the minimum, as published, or the mean.
        sync: How the target catches up with accepted drafts. "lazy" reads them before the target generates again.
            "eager" reads each at once, in a pass per block. A `Rebuilt` reads a few latents in one pass, which makes
            another target unless the pipeline's target is rebuilt too.
        optimistic: Whether the next block is drafted before this block is scored; a rejection drops both. This helps
            a drafter on its own device. The videos are the same.

    Raises:
        ValueError: Settings conflict.
    """

    drafter: BlockVideoModel
    reward: Reward | None = None
    threshold: Annotated[float, Range(infinite=True)] | None = None
    router: Router | str | None = None
    reduction: Reduction = "min"
    sync: Literal["lazy", "eager"] | Rebuilt = "lazy"
    optimistic: bool = False
    active_router: Router = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.router is None):
            raise ValueError(
                f"threshold, router: expected one of them, got {self.threshold} and {self.router}; pass either"
            )
        object.__setattr__(self, "router", value_of(self.router, "video", "router"))
        if self.router is not None and not isinstance(self.router, Router):
            raise ValueError(f"router: expected a Router, got {self.router!r}; make one, such as Strided(3)")
        if self.sync not in ("lazy", "eager") and not isinstance(self.sync, Rebuilt):
            raise ValueError(f"sync: expected 'lazy', 'eager' or a Rebuilt, got {self.sync!r}; use one of them")
        object.__setattr__(self, "active_router", Threshold(self.threshold) if self.router is None else self.router)
        if self.needs.reward and not callable(self.reward):
            raise ValueError(
                f"reward: expected a function of frames and prompt for router {self.active_router.name!r}, got "
                f"{self.reward!r}; give one, such as CosineReward"
            )
        check_fields(self)

    @property
    def name(self) -> str:
        """The name in tables."""
        sync = self.sync if isinstance(self.sync, str) else f"rebuilt {self.sync.frames}"
        return ", ".join(["sdvg", *(["mean"] if self.reduction == "mean" else []), sync])

    @property
    def needs(self) -> ScoringNeeds:
        """The scores that the router reads."""
        return self.active_router.needs

    @property
    def model(self) -> BlockVideoModel:
        """The drafter's model, without the pipeline around it."""
        return model_of(self.drafter)

    def target(self, model: BlockVideoModel) -> BlockVideoModel:
        """Return the target model, with its context under `sync`."""
        if not isinstance(self.sync, Rebuilt):
            return model
        if not hasattr(model, "context"):
            raise UnsupportedCombination(
                f"sync: expected 'lazy' or 'eager' for target {model.name!r}, whose context cannot be chosen, got "
                f"{self.sync}; use one of them"
            )
        return replace(model, context=self.sync)

    def rule(self, model: BlockVideoModel) -> Router:
        """Return the router; it is relaxed where the target's context differs from that of `model`."""
        router = self.active_router
        if router.exact and self.target(model) != model:
            router = copy(router)
            router.exact, router.name = False, f"{router.name}, rebuilt context (relaxed)"
        return router

    def open(self, target: BlockTarget) -> SDVGState:
        return SDVGState(self, target)

    def prepare(self, model: BlockVideoModel, request: VideoRequest) -> tuple[BlockTarget, SDVG, Router]:
        self._check(model, request)
        rule, scoring = self.rule(model), RewardScoring(self.reward, self.reduction)
        target = BlockTarget(self.target(model), request, rule, scoring, eager=self.sync == "eager")
        return target, self, rule

    def _check(self, target: BlockVideoModel, request: VideoRequest) -> None:
        check_drafter(self.drafter, target, request)
        if self.model.plan != target.plan:
            raise UnsupportedCombination(
                f"drafter: expected blocks as the target's, {target.plan}, got {self.model.plan}; "
                "take a model of the same plan"
            )
        if self.needs.reward and request.reward_prompts is None:
            raise ValueError(
                "reward_prompt: expected a text for every video whose prompt is encoded, got none; pass the "
                "text that the reward scores by"
            )
        self.active_router.check_rows(len(request.prompts), request.blocks)


@dataclass(frozen=True, slots=True)
class _OptimisticDraft:
    """A draft of the block after an unjudged draft, and the drafter's state `before` it."""

    latents: Tensor
    before: object


class SDVGState:
    def __init__(self, settings: SDVG, target: BlockTarget):
        self.settings, self.device = settings, settings.model.device
        read = reader_of(settings.drafter, target.request)
        self.states = target.request.open(settings.model, read)
        self.ahead: list[_OptimisticDraft | None] = [None] * target.batch

    @property
    def passes(self) -> int:
        return sum(state.passes for state in self.states)

    def propose(self, target: BlockTarget, keys: Keys) -> Draft:
        block = target.block
        uniform = keys.uniform(Purpose.DRAFT, 1)[:, 0].tolist()
        wanted = [
            row
            for row in range(target.batch)
            if target.live[row]
            and block not in target.request.anchors
            and target.router.drafts(target.position(row, uniform[row]))
        ]
        ahead, self.ahead = self.ahead, [None] * target.batch
        if not wanted:
            return root_only(target.pending)
        handles, further = [-1] * target.batch, self._further(block + 1, target)
        for row in wanted:
            video, state = target.rows[row], self.states[row]
            latents = state.generate(video.committed) if ahead[row] is None else ahead[row].latents
            handles[row] = video.put(latents.to(target.model.device), drafted=True)
            if further:
                self.ahead[row] = self._ahead(row, [*video.committed, video.slots[handles[row]]])
        target.wait_for(self.device)
        value = torch.stack((target.pending, torch.tensor(handles, device=target.device)), 1)
        return Draft(value, chain(1, target.device), Law("none"), value >= 0 if -1 in handles else None)

    def _further(self, block: int, target: BlockTarget) -> bool:
        request = target.request
        return self.settings.optimistic and block < request.blocks and block not in request.anchors

    def _ahead(self, row: int, video: list[Tensor]) -> _OptimisticDraft:
        state, before = self.states[row], self.states[row].snapshot()
        try:
            return _OptimisticDraft(state.generate(video), before)
        except BaseException:
            state.restore(before)
            raise

    def observe(self, target: BlockTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if verdict.redo is None:
            return
        for row, redo in enumerate(verdict.redo.tolist()):
            if redo and self.ahead[row] is not None:
                self.states[row].restore(self.ahead[row].before)
                self.ahead[row] = None


@method(
    "sdvg",
    domain="video",
    kind="decoding",
    title="SDVG",
    exact=False,
    models=("blocks",),
    needs=("draft", "reward"),
    about="the drafter generates blocks, and the target regenerates those that a router rejects",
    order=2,
    paper="Speculative Decoding for Autoregressive Video Generation",
)
def sdvg(
    parts: MethodParts,
    threshold: float | None = None,
    router: Router | str | None = None,
    reduction: Reduction = "min",
    sync: Literal["lazy", "eager", "rebuilt"] = "lazy",
    optimistic: bool = False,
    reward: str | None = None,
) -> SDVG:
    """`SDVG` with the smaller pipeline of a model and a reward.

    Args:
        parts: The model, the smaller pipeline "draft", and the frame scorer "reward".
        threshold: The score from which a draft is accepted; infinity is the target alone.
        router: The router instead of a threshold, such as strided:budget=3 or (hybrid:run=3,least=0.2).
        reduction: Whether a block's score is the minimum of its frames' scores or their mean.
        sync: How the target reads accepted drafts: lazy, eager, or rebuilt from a few latents.
        optimistic: Whether the next block is drafted before this block is scored.
        reward: The scorer of frames: zoo:NAME or a published model such as imagereward:FILE.
    """
    if (threshold is None) == (router is None):
        raise ValueError(f"threshold, router: expected one of them, got {threshold} and {router}; pass either")
    chosen = Threshold(threshold) if router is None else value_of(router, "video", "router", parts)
    drafter, context = parts.part("draft"), Rebuilt() if sync == "rebuilt" else sync
    scores = parts.part("reward", reward) if chosen.needs.reward else None
    return SDVG(drafter, scores, None, chosen, reduction, context, optimistic)
