"""The examples of a training run: held-out split, curriculum of texts and images, and the batch of every step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mmspec.vlm.training.examples import Example, JsonExamples

Stream = Literal["pictures", "texts"]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Text first, then more and more pictures, then pictures alone.

    The share r of picture steps is 0 up to `texts_until` of the training, rises by equal stairs, one an epoch, and is 1 from
    the last epoch before `ramp_until` on. The defaults are those of the public code of "Speculative Decoding Reimagined for
    Multimodal Large Language Models" (MSD): of 40 epochs, r = 0 in 1 to 20, (e - 20) / 20 in epoch e from 21, 1 in the last.
    That code draws lots for every example; here whole steps are dealt so that every epoch has its share to within one step.
    The two stages of ViSpec are a curriculum with `ramp_until` equal to `texts_until`.

    texts_until, ramp_until: shares of training.   epochs: stairs in the whole training.
    """

    texts_until: float = 0.5
    ramp_until: float = 1.0
    epochs: int = 40

    def __post_init__(self) -> None:
        if not 0 <= self.texts_until <= self.ramp_until <= 1 or self.epochs < 1:
            raise ValueError(
                f"curriculum: expected 0 <= texts_until <= ramp_until <= 1 and epochs of at least 1, got "
                f"{self.texts_until}, {self.ramp_until} and {self.epochs}; change them"
            )

    def share(self, step: int, steps: int) -> float:
        """Share of picture steps in the epoch of `step` (from 0) of `steps`."""
        return self._share(step * self.epochs // steps)

    def stream(self, step: int, steps: int) -> Stream:
        """Which stream step `step` of `steps` draws from; a pure function of both, so that a resumed run goes on exactly."""
        # a step shows pictures where the sum of shares passes a whole number
        return "pictures" if self._dealt(step + 1, steps) > self._dealt(step, steps) else "texts"

    def _share(self, epoch: int) -> float:
        done = (epoch + 1) / self.epochs
        if done <= self.texts_until + 1e-9:
            return 0.0
        width = self.ramp_until - self.texts_until
        return 1.0 if done >= self.ramp_until - 1e-9 else (done - self.texts_until) / width

    def _dealt(self, step: int, steps: int) -> int:
        """Picture steps among the first `step`."""
        total = 0.0
        for epoch in range(self.epochs):
            first, after = (-(-number * steps // self.epochs) for number in (epoch, epoch + 1))
            if first >= step:
                break
            total += (min(after, step) - first) * self._share(epoch)
        return int(total + 1e-6)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """mixed: examples of runs without a curriculum.   pictures, texts: the two streams of one.
    held_out: requests no training sees.   licence: of the data, as far as known."""

    mixed: Sequence[Example]
    pictures: Sequence[Example] = ()
    texts: Sequence[Example] = ()
    held_out: Sequence[Example] = ()
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class ExampleSubset:
    """Some examples of a sequence, each read when it is asked for."""

    source: Sequence[Example]
    index: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Example:
        return self.source[self.index[place]]


@dataclass(frozen=True, slots=True)
class ConcatenatedExamples:
    """Two sequences of examples one after the other; keys of the second are marked, so that they cannot meet the first's."""

    first: Sequence[Example]
    second: Sequence[Example]

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, place: int) -> Example:
        if place < len(self.first):
            return self.first[place]
        example = self.second[place - len(self.first)]
        return replace(example, key=f"text-{example.key}")


def load_training_data(file: Path, texts: Path | None = None, held_out: int = 8, seed: int = 0) -> TrainingData:
    """Examples of a JSONL file (see `JsonExamples`), shuffled once by `seed`.

    texts: a second file, of examples without pictures.   held_out: how many are kept from training, those with pictures
    first where there are such.
    Raises ValueError for records that are no examples, a key that comes twice, pictures in `texts`, and too few examples.
    """
    first = JsonExamples(file)
    second = JsonExamples(texts) if texts is not None else None
    shown = [bool(line.get("images")) for line in first.lines]
    if second is not None:
        if any(line.get("images") for line in second.lines):
            raise ValueError(f"{texts}: expected examples without images, got some with; put those into {file}")
        shown += [False] * len(second)
    for source in (first, second):
        keys = [str(line.get("key", place)) for place, line in enumerate(source.lines)] if source is not None else []
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{source.file}: expected a key for each example, got {twice!r} twice; make them differ")
    if len(shown) <= held_out:
        raise ValueError(f"{file}: expected more than the {held_out} examples held out, got {len(shown)}; add some")
    everything = first if second is None else ConcatenatedExamples(first, second)
    order = list(range(len(shown)))
    random.Random(seed).shuffle(order)
    kept = set(sorted(order, key=lambda place: not shown[place])[:held_out])
    rest = [place for place in order if place not in kept]

    def of(places: Sequence[int]) -> ExampleSubset:
        return ExampleSubset(everything, tuple(places))

    return TrainingData(
        mixed=of(rest),
        pictures=of([place for place in rest if shown[place]]),
        texts=of([place for place in rest if not shown[place]]),
        held_out=of([place for place in order if place in kept]),
    )


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
