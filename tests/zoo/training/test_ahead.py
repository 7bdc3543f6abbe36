"""What workers make ahead is what is made when asked for, in the same order, from any step on."""

from __future__ import annotations

import os

import pytest
import torch

from mmspec.zoo.training.loop import prefetched


def made(step: int) -> tuple[torch.Tensor, str, int]:
    return torch.full((2,), float(step)), f"step {step}", os.getpid()


@pytest.mark.parametrize("workers", (0, 2))
def test_steps_come_in_their_order(workers: int) -> None:
    at = prefetched(made, 6, workers)
    found = [at(step) for step in (2, 3, 4, 5)]
    assert [(float(tensor[0]), word) for tensor, word, _ in found] == [(step, f"step {step}") for step in (2, 3, 4, 5)]
    apart = {pid for *_, pid in found} - {os.getpid()}
    assert len(apart) == workers  # every worker has made some


def test_a_step_out_of_order_begins_there_anew() -> None:
    at = prefetched(made, 6, 1)
    assert [at(step)[1] for step in (0, 1, 4, 5, 1)] == [f"step {step}" for step in (0, 1, 4, 5, 1)]


def test_an_exception_of_a_worker_is_raised() -> None:
    at = prefetched(lambda step: 1 // step, 2, 1)
    with pytest.raises(ZeroDivisionError):
        at(0)
