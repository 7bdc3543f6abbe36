"""The processors of transformers that are trusted by their class are functions of the prefix, those without context of the
scores alone; copies of objects stand on their own."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.generation import logits_process as hf

from mmspec.core.round.snapshot import MOST, snapshot
from mmspec.vlm.processors.copies import ForkedProcessors, copy_of
from mmspec.vlm.processors.nodes import CONTEXT_FREE, ROW_FREE
from mmspec.vlm.processors.proof import ReferenceRun, is_function, prove_processors
from tests.vlm.stateful import manners

V = 23
INSTANCES = {
    hf.TemperatureLogitsWarper: (0.7,),
    hf.TopPLogitsWarper: (0.6,),
    hf.TopKLogitsWarper: (5,),
    hf.TopHLogitsWarper: (0.5,),
    hf.MinPLogitsWarper: (0.2,),
    hf.TypicalLogitsWarper: (0.5,),
    hf.EpsilonLogitsWarper: (0.02,),
    hf.EtaLogitsWarper: (0.02,),
    hf.LogitNormalization: (),
    hf.SuppressTokensLogitsProcessor: ([3, 5],),
    hf.InfNanRemoveLogitsProcessor: (),
    hf.RepetitionPenaltyLogitsProcessor: (1.4,),
    hf.NoRepeatNGramLogitsProcessor: (2,),
    hf.SequenceBiasLogitsProcessor: ({(4,): 2.0, (6, 7): -3.0},),
    hf.NoBadWordsLogitsProcessor: ([[4], [6, 7]],),
    hf.MinLengthLogitsProcessor: (9, 2),
    hf.MinNewTokensLengthLogitsProcessor: (6, 3, 2),
    hf.ForcedBOSTokenLogitsProcessor: (1,),
    hf.ForcedEOSTokenLogitsProcessor: (9, 2),
    hf.ExponentialDecayLengthPenalty: ((2, 1.3), 2, 6),
    hf.SuppressTokensAtBeginLogitsProcessor: ([4, 5], 8),
    hf.WatermarkLogitsProcessor: (V, "cpu"),
}


def run_of(batch: int, steps: int = 6) -> ReferenceRun:
    chance = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(steps, batch, V, generator=chance)
    tokens = torch.randint(V, (batch, steps), generator=chance)
    return ReferenceRun(torch.randint(V, (batch, 6), generator=chance), tokens, logits, logits)


@pytest.mark.parametrize("kind", CONTEXT_FREE + ROW_FREE, ids=lambda kind: kind.__name__)
def test_each_is_a_function_of_the_prefix(kind: type) -> None:
    assert is_function(kind(*INSTANCES[kind]), run_of(3))


@pytest.mark.parametrize("kind", CONTEXT_FREE, ids=lambda kind: kind.__name__)
def test_those_without_context_read_the_scores_alone(kind: type) -> None:
    processor, run = kind(*INSTANCES[kind]), run_of(3)
    for step, logits in enumerate(run.logits):
        short = torch.zeros(3, 1, dtype=torch.long)
        assert torch.equal(processor(run.ids(step), logits.clone()), processor(short, logits.clone()))


@pytest.mark.parametrize("kind", CONTEXT_FREE + ROW_FREE, ids=lambda kind: kind.__name__)
def test_each_gives_a_row_the_same_scores_in_a_batch_of_any_width(kind: type) -> None:
    processor, run = kind(*INSTANCES[kind]), run_of(3)
    for step, logits in enumerate(run.logits):
        together = processor(run.ids(step), logits.clone())
        for row in range(3):
            alone = processor(run.ids(step)[row : row + 1], logits[row : row + 1].clone())
            assert torch.allclose(together[row : row + 1], alone, atol=1e-6)


@pytest.mark.parametrize(
    "made",
    (manners.Counter, manners.SeenInRow, manners.SameRequest, manners.Grammar, manners.Pooled, manners.closure),
    ids=lambda made: made.__name__,
)
def test_processors_that_keep_state_are_none(made: type) -> None:
    assert not is_function(made(), run_of(2))


class Memo:
    """A function of the prefix that remembers what it has computed."""

    def __init__(self) -> None:
        self.patterns = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = [self.patterns.setdefault(tuple(row), float(sum(row) % 7)) for row in input_ids.tolist()]
        return scores + torch.tensor(rows)[:, None] * torch.arange(scores.shape[1])


def test_a_memory_of_prefixes_is_no_state() -> None:
    assert is_function(Memo(), run_of(3))


class Large:
    """Beside a processor, a table of more parts than are copied at every node."""

    def __init__(self, inner: object) -> None:
        self.inner, self.table = inner, {i: [i] for i in range(MOST)}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.inner(input_ids, scores)


@pytest.mark.parametrize(("inner", "in_place"), [(Memo, True), (manners.Counter, False)])
def test_much_state_is_called_in_place_only_where_it_is_a_function_of_the_prefix(inner: type, in_place: bool) -> None:
    processor, prompt = Large(inner()), torch.arange(10).view(2, 5)
    before = snapshot(processor.inner)
    fork = prove_processors([processor], [], prompt, V)
    assert [type(one) for one in fork.shared] == [Large] * in_place
    assert snapshot(processor.inner) == before and processor not in fork.here


class Holder:
    """Parts of every kind."""

    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot = [1]
        self.numbers, self.tensor, self.table = [1, [2, 3]], torch.zeros(3), {"a": {1, 2}, (1, 2): (3, [4])}
        self.same, self.method, self.partial = self.numbers, self.add, partial(self.add, [5])
        self.model, self.lock, self.chance = nn.Linear(2, 2), threading.Lock(), torch.Generator().manual_seed(3)
        self.cache, self.place = DynamicCache(), manners.Place(3)

    def add(self, more: list[int]) -> None:
        self.numbers.extend(more)


def test_a_copy_shares_models_and_no_state() -> None:
    one = Holder()
    before, other = snapshot(one), copy_of(one)
    assert snapshot(other) == before
    assert other.model is one.model and other.lock is one.lock and other.same is other.numbers is not one.numbers
    other.partial()
    other.method([6])
    other.slot.append(2)
    other.tensor.add_(1)
    other.table["a"].add(9)
    other.table[1, 2][1].append(7)
    torch.rand(1, generator=other.chance)
    other.cache.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), 0)
    other.place.accept(0)
    assert snapshot(one) == before != snapshot(other)
    assert other.numbers[-2:] == [5, 6]


@pytest.mark.parametrize("replay", (False, True))
def test_forks_go_their_own_ways(replay: bool) -> None:
    run, origin = run_of(2), manners.Counter()
    fork = ForkedProcessors([origin], replay=replay)
    first = [fork(run.ids(step), logits) for step, logits in enumerate(run.logits[:3])][-1]
    aside, again = fork.fork(), fork.fork()
    aside(run.ids(3), run.logits[3])
    aside(run.ids(4), run.logits[4])
    assert torch.equal(again(run.ids(3), run.logits[3]), fork(run.ids(3), run.logits[3])) and origin.calls == 0
    assert not torch.equal(first - run.logits[2], run.logits[2])
