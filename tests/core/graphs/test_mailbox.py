"""Letters come in order, as late as they were asked for, and hold what was written when they were sent."""

from __future__ import annotations

import torch

from mmspec.core.graphs import AsyncReadback


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
