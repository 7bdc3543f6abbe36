"""Target and drafter state of a batch at fixed addresses, and the captured round to replay."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.core.drafting.pair_state import FixedPendingFeatures
from mmspec.core.drafting.shapes import nodes_of
from mmspec.core.layers.fingerprint import modules_of, tensors_of
from mmspec.core.layers.graphs import FixedTensors, capture, check_capturable, outside_storages
from mmspec.core.round.batch_target import BatchTarget, host_rows
from mmspec.core.round.cache import SlotCache
from mmspec.core.round.draft import Draft, Evidence, Verdict, gather_nodes, run_of
from mmspec.core.round.keys import CountedKeys, Keys
from mmspec.core.round.loop import DraftState, NoDraft, attention_of_changing_shapes, verify
from mmspec.core.round.rules.base import Rule
from mmspec.vlm.drafters.base.feature_drafter import FeatureState
from mmspec.vlm.target import TextTarget

_NO_LIMIT = 2**40  # tokens that a row without a limit may still generate
_SHARED = ("parts", "dtype", "greedy", "pad", "processors", "levels", "lasting", "rope", "stopping", "strict",
           "surroundings")  # fmt: skip


class CapturedTarget(TextTarget):
    """R rows at fixed addresses, which commit verdicts without reading from the device and write the results for the
    host to `lines`, see `host_rows`. A row has committed at most `bound` slots before a round; the cache has room for a
    pass of `nodes` nodes, whose longest path has `width`. `alive` bool [R] are the rows that continue, `left` int64 [R]
    the tokens that each may still generate, `ends` int64 [E] the ids that end a row, and `paths` int64 [R] the nodes of
    each row's last path, 0 for a row that had stopped."""

    asks = False

    def __init__(self, target: TextTarget, rows: int, bound: int, width: int, nodes: int):
        BatchTarget.__init__(self, rows)
        for name in _SHARED:
            setattr(self, name, getattr(target, name))
        self.prompt = target.prompt[:1].expand(rows, -1)
        self.keep_scores, self.turn, self.listener = False, None, None
        self.tokens = [[] for _ in range(rows)]
        self._raw = self._barren = self._scored = None
        self.bound, self.width, self.nodes = bound, width, nodes
        self.cache = SlotCache(
            self.parts.plan, bound + nodes, device=target.cache.length.device, places=self.parts.places
        )
        self.cache.allocate_like(target.cache, rows)
        self.cache.bound(bound)
        device, position = self.device, target.next_position
        self.cache.hidden = torch.zeros(rows, bound, dtype=torch.bool, device=device)
        self.pending = torch.zeros(rows, dtype=torch.long, device=device)
        self.next_position = position.new_zeros(*position.shape[:-1], rows)
        self.alive = torch.zeros(rows, dtype=torch.bool, device=device)
        self.left = torch.zeros(rows, dtype=torch.long, device=device)
        self.ends = torch.tensor(sorted(target.eos), dtype=torch.long, device=device)
        self.lines = torch.zeros(rows, 2 * width + 2, dtype=torch.long, device=device)

    def keep(self, static: FixedTensors) -> None:
        static.keep(self, "pending", "next_position", "alive", "left", "lines")
        static.keep(self.cache, "length")

    def load(self, target: TextTarget | CapturedTarget) -> None:
        rows, is_slot = target.batch, isinstance(target, CapturedTarget)
        self.cache.take_over(target.cache)
        hidden = target.cache.hidden
        self.cache.hidden.zero_()
        if hidden is not None:
            self.cache.hidden[:rows, : hidden.shape[1]] = hidden
        self.pending.zero_()[:rows] = target.pending
        self.next_position.zero_()[..., :rows] = target.next_position
        alive, left = (target.alive, target.left) if is_slot else _counted(target)
        self.alive.zero_()[:rows] = alive
        self.left.fill_(1)[:rows] = left

    def rooms(self, longest: int) -> Tensor:
        return torch.where(self.alive, (self.left - 1).clamp(0, longest), 0)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        failure, run = self._failure(evidence), run_of(draft, verdict)[0]
        failed = gather_nodes(failure, verdict.node[:, None])[:, 0].long() > 0
        self.lines = host_rows(verdict, failure, run)
        counts, stops = self._cut(run, verdict.depth + 1 - failed.long())
        self.paths = torch.where(self.alive, verdict.depth + 1, 0)
        self.cache.commit_counted(verdict.path, self.paths, moves=draft.tree.max_rank > 0)
        self.next_position = self.next_position + self.paths
        self.pending = verdict.correction
        self.left = self.left - torch.where(self.alive, counts, 0)
        self.alive = self.alive & ~stops & ~failed

    def _cut(self, run: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Apply `Stopping.cut` to all rows: return the number of tokens of each run that remain, and the ended rows."""
        place = torch.arange(run.shape[1], device=run.device)
        room = self.left.clamp_min(1)
        end = torch.minimum(room, count)
        stops = (run[..., None] == self.ends).any(-1) & (place < end[:, None])
        first = torch.where(stops, place, run.shape[1]).amin(-1)
        return torch.minimum(end, first + 1), (room <= count) | (first < run.shape[1])


def _counted(target: TextTarget) -> tuple[Tensor, Tensor]:
    room = target.room or [_NO_LIMIT] * target.batch
    return torch.tensor(target.live, device=target.device), torch.tensor(room, device=target.device)


def captured_state(state: FeatureState, target: CapturedTarget, reach: int) -> FeatureState:
    """Return a copy of a drafter state for the rows of a graph slot; drafts may have positions up to `reach`."""
    rows, width = target.batch, target.width
    beyond = max(width, target.nodes)
    new = copy.copy(state)
    new.target = target
    new.cache = SlotCache(state.cache.depth, target.bound + beyond, device=state.cache.length.device)
    new.cache.allocate_like(state.cache, rows)
    new.cache.bound(target.bound)
    new.pending_features = FixedPendingFeatures(rows, width, state.pending_features)
    new.rotary = state.drafter.layer.rotary(reach, target.device, state.rotary.dtype)
    new.root = new.latest = new.pictures = None
    for name in new.held:
        like = getattr(state, name)
        setattr(new, name, None if like is None else like.new_zeros(rows, *like.shape[1:]))
    return new


def register_state(state: FeatureState, static: FixedTensors) -> None:
    static.keep(state, *(name for name in state.held if getattr(state, name) is not None))
    static.keep(state.cache, "length")
    static.keep(state.pending_features, "hidden", "value", "count")


def load_state(own: FeatureState, state: FeatureState) -> None:
    own.cache.take_over(state.cache)
    own.pending_features.load(state.pending_features)
    for name in own.held:
        if (tensor := getattr(state, name)) is not None:
            getattr(own, name).zero_()[: tensor.shape[0]] = tensor


def reach_of(state: DraftState) -> int:
    """Return how far positions are ahead of slots, as pictures may use more positions than slots."""
    if isinstance(state, NoDraft):
        return 0
    return max(int((state.next_position - state.cache.length).max()), 0)


Recorder = Callable[[Callable[[], None], torch.device], Callable[[], None]]


class GraphSlot:
    """The buffers of a captured round, for at least the request's rows; `bound` and `width` as in `CapturedTarget`.
    Drafts' positions are at most `reach` ahead of slots. `memory` is the storages that a replay reads and writes,
    without the weights, which `name` compares, and the graph's private memory. Requests of a kind share `name`."""

    def __init__(
        self,
        target: TextTarget,
        state: DraftState,
        rule: Rule,
        keys: Keys,
        *,
        rows: int,
        bound: int,
        width: int,
        reach: int = 0,
        name: tuple = (),
    ):
        self.rows, self.bound, self.width, self.rule, self.name = rows, bound, width, rule, name
        nodes = 1 if isinstance(state, NoDraft) else nodes_of(state.shape)
        self.target = CapturedTarget(target, rows, bound, width, nodes)
        self.drafts = not isinstance(state, NoDraft)
        self.static = FixedTensors()
        if self.drafts:
            self.state = captured_state(state, self.target, bound + reach + 2 * width + 1)
            register_state(self.state, self.static)
        else:
            self.state = state
        self.keys = CountedKeys(keys.seeds.new_zeros(rows), keys.seeds.new_zeros(()))
        self.target.keep(self.static)
        self.static.keep(self.keys, "round")
        self.run, self.passes = self.round, 0
        self.memory: list[torch.UntypedStorage] = []
        device = self.target.device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None  # of the buffers
        self._last: torch.cuda.Event | None = None  # behind the last round of the request before

    @torch.no_grad()
    def round(self) -> None:
        with attention_of_changing_shapes(self.target.device):
            self._round()

    def _round(self) -> None:
        draft = self.state.propose(self.target, self.keys)
        evidence = self.target.score(draft)
        verdict = verify(self.rule, draft, evidence, self.keys)[1]
        self.target.commit(draft, evidence, verdict)
        self.state.observe(self.target, draft, evidence, verdict)
        self.keys.round = self.keys.round + 1
        self.static.copy_back()

    def load(self, target: TextTarget, state: DraftState, keys: Keys) -> None:
        """Load a request after its prefill, or the request of a smaller slot, by copying in place."""
        self.target.load(target)
        if self.drafts:
            load_state(self.state, state)
        self.keys.seeds.zero_()[: len(keys.seeds)] = keys.seeds
        self.keys.round.fill_(keys.round) if isinstance(keys.round, int) else self.keys.round.copy_(keys.round)

    def rehearse(self, known: bool, record: Recorder = capture) -> None:
        """Record the round, after which the request must be loaded again; `known`: its kind passed `check_capturable`."""
        self.target.alive.zero_()
        before = self.state.passes
        self.round()
        self.passes = self.state.passes - before
        if not known:
            check_capturable(self.round)
        modules = modules_of(self.state.drafter if self.drafts else None)
        self.memory = outside_storages(self.round, tensors_of(self.target.parts.model, *modules))
        self.run = record(self.round, self.target.device)

    def leave(self) -> None:
        """Note where the request ends on its stream: its last round may still run."""
        if self._stream is not None:
            self._last = torch.cuda.Event()
            self._last.record(torch.cuda.current_stream(self.target.device))

    def enter(self) -> None:
        """Order a new request behind the request before, which may have run on another stream."""
        if self._last is None:
            return
        stream = torch.cuda.current_stream(self.target.device)
        stream.wait_event(self._last)
        if stream != self._stream:
            for storage in self.memory:  # its memory is not free before this stream has finished
                tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                if tensor.is_cuda:
                    tensor.record_stream(stream)
