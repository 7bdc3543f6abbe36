"""A controller over several drafters on a clock of its own: near the best of them for every kind of text, never far below
plain decoding, and its choices look at nothing but committed values, acceptances and times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from time import perf_counter

import pytest

from mmspec.core.length.draft_options import DraftOption
from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.length.portfolio import GoodputPortfolio
from mmspec.core.round.loop import NoDraft
from tests.core.length.replayed import (
    BF16,
    FP32,
    STEEP,
    Always,
    Copying,
    CopyingRows,
    Guessing,
    Machine,
    Replay,
    ReplayBatch,
    decode,
)

Text = tuple[list[int], list[int], float]
CURVES = {"fp32": FP32, "bf16": BF16}


def prose(seed: int, share: float = 0.65, length: int = 90) -> Text:
    """Nothing repeats; the trained drafter guesses `share` of the values."""
    rng = random.Random(seed)
    return [rng.randrange(9000) for _ in range(60)], [rng.randrange(9000) for _ in range(length)], share


def copied(seed: int, share: float = 0.5) -> Text:
    """An answer that copies passages of its prompt, with new words between them."""
    rng = random.Random(seed)
    prompt = [rng.randrange(9000) for _ in range(120)]
    answer = []
    while len(answer) < 90:
        start = rng.randrange(90)
        answer += prompt[start : start + rng.randrange(12, 30)] + [
            rng.randrange(9000) for _ in range(rng.randrange(3, 9))
        ]
    return prompt, answer, share


KINDS = {"prose": prose, "copied": copied}


def spent(curve: dict[int, float], make: Callable[[Machine], object], texts: list[Text]) -> tuple[list[float], object]:
    """Seconds of every text, behind one another, and the drafter."""
    machine, costs, seconds = Machine(curve), PassCosts(), []
    drafter = make(machine)
    for text in texts:
        began = machine.now
        decode(Replay(machine, costs, *text), drafter)
        seconds.append(machine.now - began)
    return seconds, drafter


def both(machine: Machine) -> GoodputPortfolio:
    return GoodputPortfolio([Copying(), Guessing(machine)], clock=machine.clock)


def fixed(curve: dict[int, float], texts: list[Text]) -> float:
    """Seconds of the best drafter of one length."""
    made = [lambda machine, n=n: Always(Copying(), n) for n in (7, 15)]
    made += [lambda machine, n=n: Always(Guessing(machine), n) for n in (2, 3, 4)]
    return min(sum(spent(curve, make, texts)[0]) for make in made)


@pytest.mark.parametrize("curve", CURVES)
def test_every_kind_of_text_is_within_5_percent_of_its_best_drafter(curve: str) -> None:
    texts = [(kind, KINDS[kind](seed)) for seed in range(14) for kind in KINDS]
    random.Random(0).shuffle(texts)
    seconds, _ = spent(CURVES[curve], both, [text for _, text in texts])
    for kind in KINDS:
        own = [text for name, text in texts if name == kind]
        mine = sum(took for took, (name, _) in zip(seconds, texts, strict=True) if name == kind)
        assert mine <= fixed(CURVES[curve], own) / 0.95, kind
        assert mine < 0.8 * sum(spent(CURVES[curve], lambda machine: NoDraft(), own)[0])


@pytest.mark.parametrize("curve", (FP32, STEEP), ids=("fp32", "steep"))
def test_drafters_that_do_not_pay_cost_next_to_nothing(curve: dict[int, float]) -> None:
    texts = [prose(seed, share=0.05) for seed in range(26)]
    seconds, control = spent(curve, both, texts)
    assert sum(seconds) <= sum(spent(curve, lambda machine: NoDraft(), texts)[0]) / 0.97
    assert control.summary()[0]["explored"] < 0.01


def test_the_first_request_alone_is_not_much_slower() -> None:
    texts = [prose(1, share=0.05)]
    assert sum(spent(FP32, both, texts)[0]) < 1.2 * sum(spent(FP32, lambda machine: NoDraft(), texts)[0])


def test_lengths_follow_a_curve_that_is_not_monotone() -> None:
    texts = [prose(seed) for seed in range(20)]
    _, control = spent(FP32, lambda machine: GoodputPortfolio([Guessing(machine)], clock=machine.clock), texts)
    rounds = control.summary()[0]["rounds"]
    # drafts of 1 and 2 values make passes of 2 and 3 nodes, which cost more than the 4 nodes of a draft of 3
    assert rounds[3] > 0.8 * sum(rounds.values())


def test_a_draft_that_was_not_made_is_judged_by_the_values_that_follow() -> None:
    texts = [copied(seed) for seed in range(4)]
    _, control = spent(STEEP, lambda machine: GoodputPortfolio([Copying()], clock=machine.clock), texts)
    known = control.summary()[0]
    assert known["rounds"][0] > 0.9 * sum(known["rounds"].values())  # no draft pays on this curve
    assert known["accepted"]["copying"]["match"][0] > 0.7


def test_it_follows_a_change_of_the_text_within_a_request() -> None:
    prompt, plain, share = prose(5, share=0.0, length=120)
    text = prompt, [*plain, *(plain[:40] * 3)], share
    _, control = spent(BF16, both, [prose(seed, share=0.0) for seed in range(8)])
    machine = Machine(BF16)
    control.clock = machine.clock
    nodes = decode(Replay(machine, PassCosts(), *text), control)
    assert sum(nodes[:110]) < 1.5 * 110 and len(nodes) < 120 + 60


def test_a_choice_looks_at_nothing_that_is_not_committed() -> None:
    prompt, answer, share = copied(3)
    other = answer[:50] + [9001] * (len(answer) - 50)
    seen = []
    for words in (answer, other):
        machine = Machine(FP32, noise=0.0)
        control, target, nodes = both(machine), Replay(machine, PassCosts(), prompt, words, share), []
        state = control.open(target)
        while target.emitted[0] <= 30:
            draft = state.propose(target, None)
            nodes.append(draft.value.tolist())
            target.judge(draft)
            state.observe(target, draft, None, None)
        seen.append(nodes)
    assert seen[0] == seen[1]


# passes over w nodes in each of four rows, as measured on a processor
FOUR_ROWS = {1: 1.0, 2: 1.4, 4: 2.2, 5: 2.8, 8: 3.6, 16: 6.7, 64: 27.0}


def test_a_batch_is_drafted_for_only_where_its_slowest_row_gains() -> None:
    def seconds(drafter: Callable[[Machine], object], kinds: tuple[Callable[[int], Text], ...]) -> float:
        machine, costs, made = Machine(FOUR_ROWS), PassCosts(), None
        for seed in range(0, 32, 4):
            rows = [Replay(machine, costs, *kind(seed + n)) for n, kind in enumerate(kinds)]
            made = made or drafter(machine)
            decode(ReplayBatch(machine, costs, rows), made)
        return machine.now

    def automatic(machine: Machine) -> GoodputPortfolio:
        return GoodputPortfolio([CopyingRows()], clock=machine.clock)

    def plain(machine: Machine) -> NoDraft:
        return NoDraft()

    uneven = (copied, copied, copied, prose)  # three rows would gain, and the batch would end no sooner
    assert seconds(automatic, uneven) < seconds(plain, uneven) / 0.97
    assert seconds(automatic, (copied,) * 4) < seconds(plain, (copied,) * 4)


def test_requests_may_take_turns() -> None:
    machine, costs = Machine(BF16), PassCosts()
    control = both(machine)
    targets = [Replay(machine, costs, *copied(seed)) for seed in range(6)]
    states = [control.open(target) for target in targets]
    while not all(target.done for target in targets):
        for target, state in zip(targets, states, strict=True):
            if not target.done:
                draft = state.propose(target, None)
                target.judge(draft)
                state.observe(target, draft, None, None)
    assert sum(control.summary()[0]["rounds"].values()) < 0.6 * sum(len(target.answer) for target in targets)


def test_a_choice_is_sent_as_a_number() -> None:
    state = both(Machine(FP32)).open(Replay(Machine(FP32), PassCosts(), *prose(0)))
    for number, size, depth in ((0, 0, 15), (1, 0, 1), (1, 48, 7), (1, -1, 3)):
        choice = state.choice.decoded(state.choice.encoded((number, DraftOption(size, depth, 1, 1.0, 1.0))))
        assert (choice[0], choice[1].size, choice[1].depth) == (number, size, depth)
    assert state.choice.decoded(state.choice.encoded(None)) is None


def test_choosing_takes_microseconds() -> None:
    machine, best = Machine(FP32, noise=0.0), 1.0
    control = both(machine)
    for seed in range(6):
        target = Replay(machine, PassCosts(), *prose(seed))
        state = control.open(target)
        while not target.done:
            draft = state.propose(target, None)
            target.judge(draft)
            state.observe(target, draft, None, None)
            for source in state.sources:
                source.look(target)
            began = perf_counter()
            state.choice.choose(target, 50)
            best = min(best, perf_counter() - began)
    assert best < 3e-4


def test_wrong_drafters_are_refused() -> None:
    with pytest.raises(ValueError, match="drafters: expected at least one"):
        GoodputPortfolio([])
    apart = Guessing(Machine(FP32))
    apart.levels = (0, 1)
    with pytest.raises(ValueError, match="drafters: expected drafters that read the same states"):
        GoodputPortfolio([apart, Guessing(Machine(FP32))])
    assert GoodputPortfolio([Copying(), apart]).levels == (0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.core.length.replayed.GuessingState.every_round", True, raising=False)
        with pytest.raises(ValueError, match="expected a drafter that can skip rounds, got 'guessing'"):
            both(Machine(FP32)).open(Replay(Machine(FP32), PassCosts(), *prose(0)))


def test_the_summary_counts_rounds_by_depth_and_by_drafter() -> None:
    texts = [copied(seed) for seed in range(3)]
    _, control = spent(BF16, both, texts)
    (known,) = control.summary()
    by_drafter = Counter()
    for counts in known["drafters"].values():
        by_drafter += Counter({depth: n for (_, depth), n in counts.items()})
    drafted = {depth: n for depth, n in known["rounds"].items() if depth}
    assert drafted == dict(by_drafter) and known["batch"] == 1 and known["greedy"]
