"""Goodput on a clock of its own: never much slower than plain decoding, close to the best fixed length where drafts pay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import pytest
import torch

from mmspec.core.length.goodput import Goodput
from mmspec.core.length.round_estimates import AcceptanceModel, RoundCosts
from mmspec.core.round.draft import Draft, Law, root_only
from mmspec.core.round.loop import NoDraft
from mmspec.core.round.tree import chain

LENGTH, DEEPEST = 60, 8
REQUESTS = [LENGTH] * 30


@dataclass
class World:
    """Costs and chances of acceptance, and the time that has passed.

    accept: by depth from 0.   plain: a target pass; `verify` more per drafted value.   fixed, step: of a draft.
    prompt: the drafter's reading of it.   catch: of one skipped round.   noise: of every pass; one in a hundred takes 3 times.
    """

    accept: Callable[[int], float]
    plain: float = 1.0
    verify: float = 0.05
    fixed: float = 0.1
    step: float = 0.15
    prompt: float = 2.0
    catch: float = 0.02
    noise: float = 0.05
    seed: int = 0
    now: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def take(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormvariate(0, self.noise) * (3 if self.rng.random() < 0.01 else 1)

    def clock(self) -> float:
        return self.now

    def accepts(self, place: tuple, depth: int) -> bool:
        """The same for every way of decoding, so that they can be compared."""
        return random.Random(str((self.seed, place))).random() < self.accept(depth)


class Answer:
    """The target: a request of `length` values whose rows are all of that length; `most` is what the caller allows."""

    greedy = True

    def __init__(self, world: World, name: int, length: int, most: int | None, batch: int = 1):
        self.world, self.name, self.length, self.most, self.batch = world, name, length, most, batch
        self.pending, self.emitted = torch.zeros(batch, dtype=torch.long), [1] * batch
        self.paths, self.live = [[0]] * batch, [True] * batch
        self.drafted: list[int] = []

    @property
    def done(self) -> bool:
        return not any(self.live)

    def judge(self, draft: Draft) -> None:
        count = draft.tree.max_depth
        self.drafted.append(count)
        self.world.take(self.world.plain + self.world.verify * count)
        self.paths = [self._path(row, count) if self.live[row] else [] for row in range(self.batch)]
        self.emitted = [min(n + len(path), self.length) for n, path in zip(self.emitted, self.paths, strict=True)]
        self.live = [n < self.length for n in self.emitted]

    def _path(self, row: int, count: int) -> list[int]:
        depth = 0
        while depth < count and self.world.accepts((self.name, row, self.emitted[row] + depth), depth):
            depth += 1
        return list(range(depth + 1))


@dataclass
class Scripted:
    """Drafts chains as long as it is told, or always `DEEPEST` where `fixed`."""

    world: World
    fixed: bool = False
    name: str = "scripted"
    opened: int = 0

    def open_without_prefill(self, target: Answer) -> Script:
        self.opened += 1
        return Script(self)


class Script:
    passes = 0

    def __init__(self, drafter: Scripted):
        self.world, self.read, self.unread, self.always = drafter.world, False, 0, None
        self.deepest = None if drafter.fixed else DEEPEST

    def propose(self, target: Answer, keys: object, longest: int | None = None) -> Draft:
        count = next((n for n in (longest, self.always) if n is not None), DEEPEST)
        first = 0.0 if self.read else self.world.prompt
        self.world.take(first + self.world.fixed + self.world.step * count + self.world.catch * self.unread)
        self.read, self.unread = True, 0
        return Draft(torch.zeros(target.batch, count + 1, dtype=torch.long), chain(count), Law("deterministic"))

    def observe(self, *round: object) -> None:
        self.unread += 1


@dataclass
class Always:
    """Drafts of one length."""

    drafter: Scripted
    length: int

    def open(self, target: Answer) -> Script:
        state = self.drafter.open_without_prefill(target)
        state.always = self.length
        return state


def decode(world: World, drafter: object, lengths: list[int], most: int | None = None, batch: int = 1) -> float:
    """Seconds behind the prefills, which are the target's alone."""
    began = world.now
    for name, length in enumerate(lengths):
        run(Answer(world, name, length, most, batch), drafter)
    return world.now - began


def run(target: Answer, drafter: object) -> Answer:
    for _ in steps(target, drafter):
        pass
    return target


def steps(target: Answer, drafter: object):
    state = drafter.open(target)
    state.observe(target, root_only(target.pending), None, None)
    while not target.done:
        draft = state.propose(target, None)
        target.judge(draft)
        if not target.done:
            state.observe(target, draft, None, None)
        yield


def made(accept: Callable[[int], float], **costs: float) -> Callable[[], World]:
    return lambda: World(accept, **costs)


def plain(world: World, lengths: list[int], **options) -> float:
    return decode(world, NoDraft(), lengths, **options)


def controlled(world: World, lengths: list[int], fixed: bool = False, **options) -> tuple[float, Goodput]:
    control = Goodput(Scripted(world, fixed), clock=world.clock)
    return decode(world, control, lengths, **options), control


@pytest.mark.covering
@pytest.mark.parametrize("seed", (0, 1, 2))
@pytest.mark.parametrize(
    "costs", (dict(), dict(prompt=10.0), dict(fixed=0.5, step=0.5), dict(step=0.02, fixed=0.02)), ids=str
)
@pytest.mark.parametrize("fixed", (False, True))
def test_a_hopeless_drafter_costs_next_to_nothing(costs: dict, fixed: bool, seed: int) -> None:
    make = made(lambda depth: 0.02, seed=seed, **costs)
    seconds, control = controlled(make(), REQUESTS, fixed)
    assert seconds <= 1.03 * plain(make(), REQUESTS)
    rounds = control.summary()[0]["rounds"]
    assert rounds[0] > 0.85 * sum(rounds.values())


REGIMES = {
    "even": made(lambda depth: 0.8),
    "modest": made(lambda depth: 0.6),
    "falling": made(lambda depth: max(0.9 - 0.1 * depth, 0.1)),
    "cheap": made(lambda depth: 0.9, fixed=0.05, step=0.02, verify=0.0),
    "dear": made(lambda depth: 0.7, step=0.3),
    "free to verify": made(lambda depth: 0.85, step=0.1, verify=0.0, noise=0.1),
}


@pytest.mark.default_cells("modest", "falling", "free to verify")
@pytest.mark.parametrize("name", REGIMES)
def test_the_best_fixed_length_is_met_within_3_percent(name: str) -> None:
    lengths = REQUESTS * 2
    best = min(
        decode(world, Always(Scripted(world), n), lengths) for n in range(1, DEEPEST + 1) for world in [REGIMES[name]()]
    )
    seconds, _ = controlled(REGIMES[name](), lengths)
    assert best < plain(REGIMES[name](), lengths)
    assert seconds <= 1.03 * best


def test_a_fixed_shape_is_used_where_it_pays() -> None:
    make = made(lambda depth: 0.8)
    world = make()
    always = decode(world, Always(Scripted(world), DEEPEST), REQUESTS)
    assert controlled(make(), REQUESTS, fixed=True)[0] <= 1.03 * always < plain(make(), REQUESTS)


@pytest.mark.parametrize("length", (2, 3, 4))
def test_answers_of_a_few_words_are_left_alone(length: int) -> None:
    make = made(lambda depth: 0.8)
    lengths = [length] * 100
    assert controlled(make(), lengths, most=LENGTH)[0] <= 1.03 * plain(make(), lengths)


def test_the_prompt_cost_is_weighed_against_the_remaining_length() -> None:
    make = made(lambda depth: 0.8, prompt=12.0)  # pays off in 30 or 40 values
    mixed = [LENGTH, 10, 10] * 15
    control = Goodput(Scripted(world := make()), clock=world.clock)
    decode(world, control, mixed, most=120)
    answers = [run(Answer(world, 1000 + n, length, length), control) for n, length in enumerate((10, 10, 300))]
    assert [sum(map(bool, answer.drafted)) for answer in answers[:2]] == [0, 0]
    assert sum(map(bool, answers[2].drafted)) > 20


@pytest.mark.parametrize("batch", (1, 4))
def test_it_follows_a_change_of_acceptance(batch: int) -> None:
    share = [0.85]
    world = World(lambda depth: share[0])
    control = Goodput(Scripted(world), clock=world.clock)
    decode(world, control, REQUESTS, batch=batch)
    share[0] = 0.02
    late = [run(Answer(world, 100 + n, LENGTH, None, batch), control).drafted for n in range(20)]
    assert sum(map(bool, late[0])) > 0 and sum(sum(map(bool, group)) for group in late[4:]) < 40
    share[0] = 0.85
    again = [run(Answer(world, 200 + n, LENGTH, None, batch), control).drafted for n in range(60)]
    assert sum(sum(map(bool, group)) / len(group) for group in again[-5:]) > 4.5


def test_it_follows_a_change_of_costs() -> None:
    world = World(lambda depth: 0.7, step=0.1)
    control = Goodput(Scripted(world), clock=world.clock)
    decode(world, control, REQUESTS)
    world.step = 1.5  # a draft of one costs more than two plain passes now
    decode(world, control, REQUESTS)
    late = [n for name in range(5) for n in run(Answer(world, name, LENGTH, None), control).drafted]
    assert sum(map(bool, late)) < 0.1 * len(late)


def test_a_slower_machine_changes_no_choice() -> None:
    world = World(lambda depth: 0.8)
    control = Goodput(Scripted(world), clock=world.clock)
    decode(world, control, REQUESTS)
    for name in ("plain", "verify", "fixed", "step", "prompt", "catch"):
        setattr(world, name, 2 * getattr(world, name))
    drafted = [n for name in range(8) for n in run(Answer(world, name, LENGTH, None), control).drafted]
    assert sum(map(bool, drafted)) > 0.9 * len(drafted)


def test_requests_may_take_turns() -> None:
    world = World(lambda depth: 0.8)
    control = Goodput(Scripted(world), clock=world.clock)
    decode(world, control, REQUESTS[:5])
    targets = [Answer(world, name, LENGTH, None) for name in range(20)]
    going = [steps(target, control) for target in targets]
    while going:
        going = [run for run in going if next(run, "over") != "over"]
    drafted = [n for target in targets for n in target.drafted]
    assert all(target.emitted == [LENGTH] for target in targets)
    assert sum(map(bool, drafted)) > 0.8 * len(drafted)


def test_kinds_of_requests_are_learned_apart() -> None:
    world = World(lambda depth: 0.8)
    control = Goodput(Scripted(world), clock=world.clock)
    for batch in (1, 3):
        decode(world, control, REQUESTS[:5], batch=batch)
    sampled = Answer(world, 0, LENGTH, None)
    sampled.greedy = False
    run(sampled, control)
    kinds = control.summary()
    assert [(kind["batch"], kind["greedy"]) for kind in kinds] == [(1, False), (1, True), (3, True)]
    known = kinds[1]
    assert known["rounds"].keys() >= known["seconds"].keys() and 0 <= known["explored"] < 0.02
    assert known["accepted"][0] == pytest.approx(0.8, abs=0.12)
    assert known["seconds"][0] == pytest.approx(1.0, abs=0.1)


def test_no_more_is_drafted_than_there_is_room_for() -> None:
    world = World(lambda depth: 0.9, step=0.02, verify=0.0)
    control = Goodput(Scripted(world), clock=world.clock)
    for name in range(10):
        target = Answer(world, name, LENGTH, LENGTH)
        for _ in steps(target, control):
            pass
        emitted = 1
        for drafted in target.drafted[:-1]:
            assert drafted <= LENGTH - emitted - 1
            emitted += 1  # at least


def test_choosing_takes_microseconds() -> None:
    world = World(lambda depth: 0.8)
    control = Goodput(Scripted(world), clock=world.clock)
    decode(world, control, REQUESTS)
    state = control.open(target := Answer(world, 0, LENGTH, 1000))
    best = 1.0
    for _ in range(300):
        began = perf_counter()
        length = state.bandit.choose(state.request)
        state.bandit.learn(state.request, length, 1.0, [2], length)
        best = min(best, perf_counter() - began)
    assert target.batch == 1 and best < 1e-4


def test_exploration_stops_early_when_no_draft_is_accepted() -> None:
    world = World(lambda depth: 0.0, fixed=0.5, step=0.5)
    control = Goodput(Scripted(world), clock=world.clock)
    drafted = run(Answer(world, 0, 12, 60), control).drafted + run(Answer(world, 1, 12, 60), control).drafted
    assert 1 <= sum(map(bool, drafted)) <= 3 and max(drafted) == 2


def test_a_drafter_that_has_to_draft_is_refused() -> None:
    drafter = Scripted(world := World(lambda depth: 0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "every_round", True, raising=False)
        with pytest.raises(ValueError, match="expected a drafter that can skip rounds, got 'scripted'"):
            Goodput(drafter).open(Answer(world, 0, LENGTH, None))


def test_impossible_settings_are_refused_and_names_tell() -> None:
    with pytest.raises(ValueError, match="explore: expected a share"):
        Goodput(Scripted(World(lambda depth: 0.5)), explore=1.0)
    control = Goodput(Scripted(World(lambda depth: 0.5)))
    assert control.name == "goodput(scripted)" and control.levels is None


def test_a_single_slow_round_does_not_distort_the_costs() -> None:
    costs = RoundCosts()
    for _ in range(10):
        costs.add(0, 1.0)
        costs.add(2, 1.5)
    before = costs.table(4)
    costs.add(2, 50.0)
    assert costs.table(4)[2] < 1.1 * before[2]
    assert before == sorted(before)


def test_unseen_depths_follow_the_shallower_depths() -> None:
    profile = AcceptanceModel()
    for _ in range(200):
        profile.add(1, 1)
    shares = profile.shares(3)
    assert shares[0] > 0.98 and shares[1] == shares[2] == shares[0]
    assert profile.tokens(2) == pytest.approx([1.0, 1 + shares[0], 1 + shares[0] + shares[0] ** 2])
