"""Which examples a training step sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmspec.vlm.training.curriculum import Curriculum
from mmspec.vlm.training.examples import Example


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of examples, numbered, and the number every step gets: pure functions, so that a resumed run goes on exactly.

    Batches are taken in order, over and over; a last one that is short is filled up from the start. With texts there are two
    streams, and `curriculum` says which of them a step draws from; without, steps draw from `examples` alone.

    Raises ValueError where there is nothing to draw from, and for texts without a curriculum.
    """

    examples: Sequence[Example]
    batch: int
    steps: int
    texts: Sequence[Example] = ()
    curriculum: Curriculum | None = None
    _plan: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.steps < 1 or not len(self.examples):
            raise ValueError(f"expected examples, and batch and steps of at least 1, got {len(self.examples)} examples, "
                             f"batch {self.batch} and {self.steps} steps; change them")  # fmt: skip
        if (self.curriculum is None) != (not len(self.texts)):
            raise ValueError(f"texts: expected some exactly where there is a curriculum, got {len(self.texts)} texts and "
                             f"curriculum {self.curriculum}; give both or neither")  # fmt: skip
        plan, taken = [], {"pictures": 0, "texts": 0}
        for step in range(self.steps):
            kind = "pictures" if self.curriculum is None else self.curriculum.stream(step, self.steps)
            first, count = (0, self._pictures) if kind == "pictures" else (self._pictures, self.count - self._pictures)
            plan.append(first + taken[kind] % count)
            taken[kind] += 1
        object.__setattr__(self, "_plan", tuple(plan))

    @property
    def _pictures(self) -> int:
        return -(-len(self.examples) // self.batch)

    @property
    def count(self) -> int:
        """How many batches there are."""
        return self._pictures + -(-len(self.texts) // self.batch)

    @property
    def needed(self) -> tuple[int, ...]:
        """The batches the steps draw, each once, in the order of their first use."""
        return tuple(dict.fromkeys(self._plan))

    @property
    def used(self) -> list[tuple[Sequence[Example], tuple[int, ...]]]:
        """The streams, and which of their examples any step draws."""
        found = []
        for stream, first in ((self.examples, 0), (self.texts, self._pictures)):
            numbers = [n - first for n in self.needed if (n < self._pictures) == (first == 0)]
            places = {(n * self.batch + i) % len(stream) for n in numbers for i in range(self.batch)}
            found.append((stream, tuple(sorted(places))))
        return found

    def number(self, step: int) -> int:
        """The batch of a step; beyond the last step, of the steps from the start again."""
        return self._plan[step % self.steps]

    def __getitem__(self, number: int) -> list[Example]:
        """The examples of a batch."""
        stream, at = (self.examples, number) if number < self._pictures else (self.texts, number - self._pictures)
        return [stream[(at * self.batch + i) % len(stream)] for i in range(self.batch)]
