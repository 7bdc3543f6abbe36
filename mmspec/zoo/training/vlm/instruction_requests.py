"""Requests that drafters of text models are trained on: generated instructions, neighbours of about the same length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mmspec.vlm.training.examples import Example
from mmspec.zoo.world.instructions import Instruction, instruction

HELD_OUT_SEED = 1 << 24
_WINDOW = 512  # requests that are sorted by length together, so that batches waste little padding


@dataclass(frozen=True, slots=True)
class InstructionRequests:
    """The first `count` distinct instructions from a seed on, as a sequence of examples.

    Attributes:
        count: The number of requests.
        seed: The number of the first instruction.
    """

    count: int
    seed: int = 0
    _ordered: tuple[tuple[int, Instruction], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        chosen = [pair for _, pair in zip(range(self.count), _distinct(self.seed), strict=False)]
        windows = [sorted(chosen[i : i + _WINDOW], key=_length) for i in range(0, self.count, _WINDOW)]
        object.__setattr__(self, "_ordered", tuple(pair for window in windows for pair in window))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        number, request = self._ordered[index]
        return Example(f"instruction-{number}", request.text, history=request.history)


def held_out_instructions(count: int) -> InstructionRequests:
    """Requests that no training sees: acceptance is measured on them while a drafter trains."""
    return InstructionRequests(count, HELD_OUT_SEED)


def _distinct(seed: int) -> Iterator[tuple[int, Instruction]]:
    seen = set()
    number = seed
    while True:
        made = instruction(number)
        if (made.text, made.history) not in seen:
            seen.add((made.text, made.history))
            yield number, made
        number += 1


def _length(pair: tuple[int, Instruction]) -> int:
    request = pair[1]
    return len(request.text) + sum(len(text) for _, text in request.history)
