"""What rounds tell the host, which reads it late enough never to wait for the round that is running."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class Mailbox:
    """Copies of a small tensor in the order of the rounds that wrote it.

    late: how many of the latest stay unread. On a CPU 0: reading costs nothing there, and a round too many would.
    """

    def __init__(self, device: torch.device, late: int | None = None):
        self.cuda = device.type == "cuda"
        self.late = int(self.cuda) if late is None else late
        self._out: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._spare: list[Tensor] = []

    def __len__(self) -> int:
        """Letters that are out."""
        return len(self._out)

    def post(self, letter: Tensor) -> None:
        """Sends what the tensor will hold once the round is through, behind it on its stream."""
        paper = self._spare.pop() if self._spare else torch.empty_like(letter, device="cpu", pin_memory=self.cuda)
        paper.copy_(letter, non_blocking=self.cuda)
        event = None
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
        self._out.append((paper, event))

    def read(self) -> list[list[int]] | None:
        """The oldest letter, unless only the latest are out."""
        if len(self._out) <= self.late:
            return None
        paper, event = self._out.popleft()
        if event is not None:
            event.synchronize()
        self._spare.append(paper)
        return paper.tolist()
