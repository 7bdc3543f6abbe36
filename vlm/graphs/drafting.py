"""The drafter's side of a captured round: its own state class, with what it holds of a request at fixed addresses."""

from __future__ import annotations

import copy

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.held_pairs import HeldPairs
from mmspec.core.graphs.static import Static
from mmspec.core.loop import DraftState, NoDraft
from mmspec.vlm.drafters.feature_state import FeatureState
from mmspec.vlm.graphs.target import SeatedTarget


def seated(state: FeatureState, target: SeatedTarget, reach: int) -> FeatureState:
    """A copy of a state that drafts for the rows of a seat.   reach: positions that the next drafts can have."""
    rows, width = target.batch, target.width
    beyond = max(width, target.nodes)
    made = copy.copy(state)
    made.target = target
    made.cache = SlotCache(1, target.bound + beyond, device=state.cache.length.device)
    made.cache.allocate_like(state.cache, rows)
    made.cache.bound(target.bound)
    made.pending_features = HeldPairs(rows, width, state.pending_features)
    made.rotary = state.drafter.layer.rotary(reach, target.device, state.rotary.dtype)
    made.root = made.latest = made.pictures = None
    for name in made.held:
        like = getattr(state, name)
        setattr(made, name, None if like is None else like.new_zeros(rows, *like.shape[1:]))
    return made


def keep(state: FeatureState, static: Static) -> None:
    """Says what a round replaces."""
    static.keep(state, *(name for name in state.held if getattr(state, name) is not None))
    static.keep(state.cache, "length")
    static.keep(state.pending_features, "hidden", "value", "count")


def load(own: FeatureState, state: FeatureState) -> None:
    """Takes over a request's state, or that of a smaller seat."""
    own.cache.take_over(state.cache)
    own.pending_features.load(state.pending_features)
    for name in own.held:
        if (kept := getattr(state, name)) is not None:
            getattr(own, name).zero_()[: kept.shape[0]] = kept


def reach_of(state: DraftState) -> int:
    """How far a row's next position lies ahead of its slots, where pictures count more positions than they have slots."""
    if isinstance(state, NoDraft):
        return 0
    return max(int((state.next_position - state.cache.length).max()), 0)
