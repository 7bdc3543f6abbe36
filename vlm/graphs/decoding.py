"""Decoding with captured rounds: the host launches them and reads the results late. Some requests cannot be captured."""

from __future__ import annotations

from time import perf_counter
from warnings import warn

import torch

from mmspec.core.drafting.pair_state import PairState, PendingFeatures
from mmspec.core.drafting.shapes import Chain
from mmspec.core.graphs import AsyncReadback, CaptureRefused
from mmspec.core.loop import DecodingRun, NoDraft
from mmspec.vlm.graphs.graph_slot import GraphSlot
from mmspec.vlm.graphs.rounds import Rounds, width_of
from mmspec.vlm.target import TextTarget


def check_capturable(target: TextTarget, state: object) -> None:
    """Raises CaptureRefused, with the reason, for what keeps part of a round on the host."""
    parts = target.parts
    for met, wanted, got in (
        (parts.group is None, "layers of one process", "layers that several share"),
        (_at_home(target), f"all layers on {target.device}", "layers elsewhere, or moved by hooks"),
        (not parts.plan.stateful, "layers of attention", "layers with recurrent states"),
        (all(layer.kind != "cross" for layer in parts.plan.layers), "layers of attention", "layers of cross attention"),
        (target.rope is None, "rotary embeddings of one kind", "some that depend on the sequence's length"),
        (not target.lasting, "passes over tokens alone", "passes that are given the prompt's inputs again"),
        (not target.strict, "passes of any bits", "strict ones, which look at lengths"),
        (target.turn is None, "a request of its own", "a turn of a conversation"),
        (not target.keep_scores, "tokens alone to be returned", "scores of every step"),
        (not target.goes_on, "tokens alone to be returned", "the cache too, as past_key_values"),
        (not target.processors.bound, "logits processors that look at no prefix", "one that does"),
        (not target.stopping.others, "eos ids and a length to stop at", "other stopping criteria"),
        (_holds(state), "no drafter or one of a fixed shape that reads accepted pairs", f"a {type(state).__name__}"),
        (_fixed(state), "drafts of one length", "a length decided while they grow"),
    ):
        if not met:
            raise CaptureRefused(f"expected {wanted}, got {got}")


def _at_home(target: TextTarget) -> bool:
    places = {one for one in target.parts.places if one is not None}
    hooked = any(hasattr(module, "_hf_hook") for module in target.parts.model.modules())
    return not hooked and all(place.type == target.device.type for place in places) and len(places) <= 1


def _holds(state: object) -> bool:
    """Whether a drafter's state says itself what of it lasts, and not only a class that it derives from."""
    if isinstance(state, NoDraft):
        return True
    said = "held" in vars(type(state)) and isinstance(state, PairState)
    return said and isinstance(state.pending_features, PendingFeatures) and len(state.pending_features) == 1


def _fixed(state: object) -> bool:
    shape = getattr(state, "shape", None)
    return not isinstance(shape, Chain) or shape.length.begin() is None


_AHEAD = 512  # tokens a graph slot has room for at first


class CapturedDecoding(DecodingRun):
    """`DecodingRun` whose rounds behind the prefill run in a graph slot, see `Rounds`. Its tokens are the ordinary loop's.
    A request that no captured round serves goes on in that loop, and a warning says why.

    Exact as the ordinary loop is: it is the same drafts, passes, rule and random numbers.
    Of its stats target_s holds whole rounds, and drafter_passes those of rounds at their full length.
    """

    def __init__(self, *args: object, rounds: Rounds, **kwargs: object):
        super().__init__(*args, **kwargs)
        self.rounds, self.graph_slot, self.ordinary = rounds, None, False
        self.mail: AsyncReadback | None = None
        self._slots: list[int] = []  # that every row has committed at most, as far as the host has read

    @property
    def captured(self) -> bool:
        """Whether its rounds run in a graph slot, or have."""
        return bool(self._slots)

    @torch.no_grad()
    def step(self) -> bool:
        if self.ordinary or self.state is None:
            more = super().step()
            if more and not self.ordinary:
                self._enter_slot()
            return more
        stats, started = self.stats, perf_counter()
        with stats.time("target"):
            self._make_room()
            self.graph_slot.run()
            self.mail.post(self.graph_slot.target.lines)
            stats.drafter_passes += self.graph_slot.passes
        with stats.time("verify"):
            lines = self.mail.read()
            if lines is not None:
                self._take(lines)
        self.keys.round += 1
        stats.took(perf_counter() - started)
        if self.target.done:
            self._leave_slot()
        return not self.target.done

    def _enter_slot(self) -> None:
        """Moves the request to a graph slot behind its prefill, or says why it stays."""
        try:
            check_capturable(self.target, self.state)
            self.width = width_of(self.state)
            kept = [self.target.cache, *([self.state.cache] if hasattr(self.state, "cache") else [])]
            rows = [max(lengths) for lengths in zip(*(cache.lengths for cache in kept), strict=True)]
            ahead = min(self.target.most or _AHEAD, _AHEAD) + 2 * self.width
            self.mail = AsyncReadback(self.target.device, self.rounds.late)
            with self.stats.time("target"):
                self.graph_slot = self._graph_slot(self.target, self.state, self.keys, max(rows) + ahead)
            self._slots = rows
        except CaptureRefused as refused:
            self.ordinary = True
            warn(f"capture: {refused}; the ordinary loop runs instead", RuntimeWarning, stacklevel=2)

    def _graph_slot(self, target: object, state: object, keys: object, slots: int) -> GraphSlot:
        return self.rounds.graph_slot(target, state, self.rule, keys, slots, self.width)

    def _make_room(self) -> None:
        """Moves to a larger slot where the coming round might not fit: rounds unread may have kept all they drafted."""
        needed = max(self._slots) + self.width * (len(self.mail) + 1)
        if needed > self.graph_slot.bound:
            old = self.graph_slot
            self.graph_slot = self._graph_slot(old.target, old.state, old.keys, max(2 * old.bound, needed))
            self.rounds.release(old)

    def _take(self, lines: list[list[int]]) -> None:
        """What the host learns of a round."""
        stats, target = self.stats, self.target
        accepted = target.commit_rows(lines[: target.batch], self.width, fails=True, runs=True)
        self._slots = [slots + len(path) for slots, path in zip(self._slots, target.paths, strict=True)]
        stats.target_passes += 1
        stats.row_passes += sum(one is not None for one in accepted)
        stats.accepted.append(accepted)
        stats.emitted = list(target.emitted)

    def _leave_slot(self) -> None:
        """Gives the slot back. Rounds behind the last one changed nothing: their rows had stopped."""
        if self.graph_slot is not None:
            self.rounds.release(self.graph_slot)
            self.graph_slot = None
