"""Decoding with captured rounds: the host launches them and reads the results later. Some requests cannot be captured."""

from __future__ import annotations

from time import perf_counter
from warnings import warn

import torch

from mmspec.core.drafting.pair_state import PairState, PendingFeatures
from mmspec.core.drafting.shapes import Chain
from mmspec.core.layers.graphs import AsyncReadback, CaptureRefused
from mmspec.core.round.loop import DecodingRun, NoDraft
from mmspec.vlm.graphs.graph_slot import GraphSlot
from mmspec.vlm.graphs.rounds import Rounds, width_of
from mmspec.vlm.target import TextTarget


def check_capturable(target: TextTarget, state: object) -> None:
    """Raise CaptureRefused with the reason if a part of a request's round needs the host."""
    parts = target.parts
    for met, wanted, got in (
        (parts.group is None, "layers in a single process", "layers shared by several processes"),
        (target.recordable, "modules without code of yours", ", ".join(parts.code)),
        (_at_home(target), f"all layers on {target.device}", "layers on other devices, or moved by hooks"),
        (not parts.plan.stateful, "attention layers", "layers with recurrent states"),
        (all(layer.kind != "cross" for layer in parts.plan.layers), "self-attention layers", "cross-attention layers"),
        (target.rope is None, "fixed rotary embeddings", "rotary embeddings that depend on the sequence length"),
        (not target.lasting, "passes over tokens alone", "passes that need inputs of the prompt again"),
        (not target.strict, "strict=False", "strict passes, which depend on lengths"),
        (target.turn is None, "a request of its own", "a turn of a conversation"),
        (not target.keep_scores, "a result of tokens alone", "scores of every step"),
        (not target.goes_on, "a result of tokens alone", "the cache too, as past_key_values"),
        (not target.processors.bound, "logits processors that do not read the prefix", "a processor that reads it"),
        (not target.stopping.others, "eos ids and a length limit", "other stopping criteria"),
        (
            _holds(state),
            "no drafter, or a drafter of fixed shape that reads accepted pairs",
            f"a {type(state).__name__}",
        ),
        (_fixed(state), "drafts of a fixed length", "a length that is decided while drafting"),
    ):
        if not met:
            raise CaptureRefused(f"expected {wanted}, got {got}")


def _at_home(target: TextTarget) -> bool:
    places = {place for place in target.parts.places if place is not None}
    hooked = any(hasattr(module, "_hf_hook") for module in target.parts.model.modules())
    return not hooked and all(place.type == target.device.type for place in places) and len(places) <= 1


def _holds(state: object) -> bool:
    """Return whether a drafter state lists its lasting tensors in `held` of its own class, not only of a base class."""
    if isinstance(state, NoDraft):
        return True
    lists = "held" in vars(type(state)) and isinstance(state, PairState)
    return lists and isinstance(state.pending_features, PendingFeatures) and len(state.pending_features) == 1


def _fixed(state: object) -> bool:
    shape = getattr(state, "shape", None)
    return not isinstance(shape, Chain) or shape.length.begin() is None


_AHEAD = 512  # most generated tokens for which the first graph slot has room


class CapturedDecoding(DecodingRun):
    """Rounds after the prefill run in a graph slot, see `Rounds`. Drafts, passes, rule and random numbers, and so the
    tokens, are those of the ordinary loop. In bfloat16 on a GPU, products over larger buffers may round in another way,
    which matters at near ties. A request that cannot be captured continues in that loop with a warning. In the stats,
    target_s is the time of whole rounds, and drafter_passes counts rounds at full length."""

    def __init__(self, *args: object, rounds: Rounds, **kwargs: object):
        super().__init__(*args, **kwargs)
        self.rounds, self.graph_slot, self.ordinary = rounds, None, False
        self.mail: AsyncReadback | None = None
        self._slots: list[int] = []  # per row, the most slots committed in the rounds that the host has read

    @property
    def captured(self) -> bool:
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
        try:
            check_capturable(self.target, self.state)
            self.width = width_of(self.state)
            caches = [self.target.cache, *([self.state.cache] if hasattr(self.state, "cache") else [])]
            rows = [max(lengths) for lengths in zip(*(cache.lengths for cache in caches), strict=True)]
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
        """Move to a larger slot if the next round might not fit: unread rounds may have accepted whole drafts."""
        needed = max(self._slots) + self.width * (len(self.mail) + 1)
        if needed > self.graph_slot.bound:
            old = self.graph_slot
            self.graph_slot = self._graph_slot(old.target, old.state, old.keys, max(2 * old.bound, needed))
            self.rounds.release(old)

    def _take(self, lines: list[list[int]]) -> None:
        stats, target = self.stats, self.target
        accepted = target.commit_rows(lines[: target.batch], self.width, fails=True, runs=True)
        self._slots = [slots + len(path) for slots, path in zip(self._slots, target.paths, strict=True)]
        stats.target_passes += 1
        stats.row_passes += sum(count is not None for count in accepted)
        stats.accepted.append(accepted)
        stats.emitted = list(target.emitted)

    def _leave_slot(self) -> None:
        """Release the slot. Rounds launched after the end changed nothing, because their rows had stopped."""
        if self.graph_slot is not None:
            self.rounds.release(self.graph_slot)
            self.graph_slot = None
