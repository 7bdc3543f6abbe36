"""Letters come in order, as late as they were asked for, and hold what was written when they were sent."""

from __future__ import annotations

import gc

import pytest
import torch

from mmspec.core.layers.graphs import AsyncReadback, without_collection


def test_letters_come_in_order_and_late() -> None:
    mail, letter = AsyncReadback(torch.device("cpu"), late=1), torch.zeros(1, 2, dtype=torch.long)
    read = []
    for round in range(4):
        letter.fill_(round)
        mail.post(letter)
        read.append(mail.read())
    assert read == [None, [[0, 0]], [[1, 1]], [[2, 2]]] and len(mail) == 1


def test_a_cpu_reads_at_once() -> None:
    mail = AsyncReadback(torch.device("cpu"))
    mail.post(torch.tensor([[7]]))
    assert mail.read() == [[7]] and mail.read() is None


@pytest.mark.parametrize("enabled", (True, False))
def test_the_garbage_collector_rests_and_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
