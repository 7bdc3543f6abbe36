"""A function that can be replayed is told from one that cannot, by what it does."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.layers.graphs import CaptureRefused, FixedTensors, check_capturable
from tests.core.layers.graphs.recorded import recorded

CPU = torch.device("cpu")


class Counter:
    """Two numbers that swap places every round, and a count."""

    def __init__(self) -> None:
        self.static, self.calls = FixedTensors(), 0
        self.first, self.second, self.count = torch.tensor([1.0]), torch.tensor([2.0]), torch.zeros(())
        self.static.keep(self, "first", "second", "count")

    def round(self) -> None:
        self.calls += 1
        self.first, self.second, self.count = self.second, self.first, self.count + 1
        self.static.copy_back()

    @property
    def now(self) -> list[float]:
        return [float(x) for x in (self.first, self.second, self.count)]


def test_a_replay_continues_where_the_previous_replay_ended() -> None:
    counter = Counter()
    check_capturable(counter.round)
    replay = recorded(counter.round, CPU)
    calls, before = counter.calls, counter.now
    for _ in range(3):
        replay()
    assert counter.calls == calls
    assert counter.now == [before[1], before[0], before[2] + 3]


def test_without_a_way_home_a_replay_repeats_itself() -> None:
    counter = Counter()
    counter.static.copy_back = lambda: None
    replay = recorded(counter.round, CPU)
    replay()
    first = counter.now
    replay()
    assert counter.now == first


def test_another_shape_is_refused() -> None:
    counter = Counter()
    counter.count = torch.zeros(2)
    with pytest.raises(CaptureRefused, match="leaves count as"):
        counter.static.copy_back()


def test_steps_that_change_with_the_hosts_numbers_are_refused() -> None:
    calls, x = [], torch.ones(4)

    def longer() -> None:
        calls.append(1)
        x[: len(calls) % 4].add_(1)

    with pytest.raises(CaptureRefused, match="same steps"):
        check_capturable(longer)


def test_numbers_of_the_host_are_refused() -> None:
    with pytest.raises(CaptureRefused, match="made of Python numbers"):
        check_capturable(lambda: torch.tensor([1, 2]))


def test_a_number_may_fill_a_slice() -> None:
    x = torch.ones(4)

    def filled() -> None:
        x[1:] = 0

    check_capturable(filled)
    assert x.tolist() == [1, 0, 0, 0]


def test_a_number_that_changes_between_fillings_is_refused() -> None:
    calls, x = [], torch.ones(4)

    def filled() -> None:
        calls.append(1)
        x[1:] = len(calls)

    with pytest.raises(CaptureRefused, match="same steps"):
        check_capturable(filled)


@pytest.mark.parametrize("use", ("sum", "places"))
def test_a_number_in_a_tensor_of_its_own_is_refused(use: str) -> None:
    x, places = torch.ones(4), torch.tensor([0, 2])

    def used() -> None:
        if use == "sum":
            x.add_(torch.tensor(3.0))
        else:
            x[places] = 3.0

    with pytest.raises(CaptureRefused, match="made of Python numbers"):
        check_capturable(used)


def test_a_number_put_into_a_view_is_a_step_of_the_device() -> None:
    table = torch.zeros(3, 4)

    def steps() -> None:
        table[:, 0] = 2
        table[..., -1:] = True
        table[1] = float("-inf")

    check_capturable(steps)
    expected = torch.zeros(3, 4)
    expected[:, 0], expected[:, -1], expected[1] = 2, 1, float("-inf")
    assert torch.equal(table, expected)


def test_a_number_put_where_a_mask_is_true_is_refused() -> None:
    table, mask = torch.zeros(3), torch.tensor([True, False, True])
    with pytest.raises(CaptureRefused, match="expected a round"):
        check_capturable(lambda: table.__setitem__(mask, torch.ones(2)))
