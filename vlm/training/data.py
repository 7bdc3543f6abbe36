"""The examples of a training run: held-out split, curriculum of texts and images, and the batch of every step."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mmspec.vlm.training.examples import Example, JsonExamples

Stream = Literal["pictures", "texts"]


@dataclass(frozen=True, slots=True)
class Curriculum:
    """A curriculum of text first, then a growing share of pictures, then pictures alone.

    The share r of picture steps is 0 up to `texts_until`, rises in equal stairs per epoch, and is 1 from the last epoch
    before `ramp_until`. The defaults follow the public code of "Speculative Decoding Reimagined for Multimodal Large
    Language Models" (MSD): of 40 epochs, r is 0 in the first 20 and (e - 20) / 20 in epoch e after them. That code
    draws each example at random; here whole steps are assigned, and every epoch has its share up to a step. The two
    stages of ViSpec are a curriculum with `ramp_until` equal to `texts_until`."""

    texts_until: float = 0.5
    ramp_until: float = 1.0
    epochs: int = 40  # stairs in the whole training

    def __post_init__(self) -> None:
        if not 0 <= self.texts_until <= self.ramp_until <= 1 or self.epochs < 1:
            raise ValueError(
                f"curriculum: expected 0 <= texts_until <= ramp_until <= 1 and epochs of at least 1, got "
                f"{self.texts_until}, {self.ramp_until} and {self.epochs}; change them"
            )

    def share(self, step: int, steps: int) -> float:
        """Return the share of picture steps in the epoch of `step` (from 0) of `steps`."""
        return self._share(step * self.epochs // steps)

    def stream(self, step: int, steps: int) -> Stream:
        """Return the stream of `step`; it depends on the arguments alone, so a resumed run continues exactly."""
        # a step has pictures when the sum of shares passes a whole number
        return "pictures" if self._dealt(step + 1, steps) > self._dealt(step, steps) else "texts"

    def _share(self, epoch: int) -> float:
        done = (epoch + 1) / self.epochs
        if done <= self.texts_until + 1e-9:
            return 0.0
        width = self.ramp_until - self.texts_until
        return 1.0 if done >= self.ramp_until - 1e-9 else (done - self.texts_until) / width

    def _dealt(self, step: int, steps: int) -> int:
        """Return the number of picture steps among the first `step` steps."""
        total = 0.0
        for epoch in range(self.epochs):
            first, after = (-(-number * steps // self.epochs) for number in (epoch, epoch + 1))
            if first >= step:
                break
            total += (min(after, step) - first) * self._share(epoch)
        return int(total + 1e-6)


@dataclass(frozen=True, slots=True)
class TrainingData:
    mixed: Sequence[Example]  # for runs without a curriculum
    pictures: Sequence[Example] = ()  # for a curriculum
    texts: Sequence[Example] = ()  # without pictures, for a curriculum
    held_out: Sequence[Example] = ()  # not trained on
    licence: str | None = None  # of the data, if it is known


@dataclass(frozen=True, slots=True)
class ExampleSubset:
    """A subset of a sequence of examples, read on access."""

    source: Sequence[Example]
    index: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Example:
        return self.source[self.index[place]]

    def digest(self, place: int) -> str:
        return _digest(self.source, self.index[place])


@dataclass(frozen=True, slots=True)
class ConcatenatedExamples:
    """Two concatenated sequences of examples; keys of the second have a prefix that avoids collisions."""

    first: Sequence[Example]
    second: Sequence[Example]

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, place: int) -> Example:
        if place < len(self.first):
            return self.first[place]
        example = self.second[place - len(self.first)]
        return replace(example, key=f"text-{example.key}")

    def digest(self, place: int) -> str:
        if place < len(self.first):
            return _digest(self.first, place)
        return _digest(self.second, place - len(self.first))


def contents_of(streams: Sequence[Sequence[Example]]) -> str:
    """Return a hash of the contents of the examples in these streams, by which a run knows its data."""
    digests = [[_digest(stream, place) for place in range(len(stream))] for stream in streams]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:32]


def _digest(examples: Sequence[Example], place: int) -> str:
    """Return the hash of an example, which a file knows without opening pictures."""
    digest = getattr(examples, "digest", None)
    return examples[place].digest() if digest is None else digest(place)


def load_training_data(file: Path, texts: Path | None = None, held_out: int = 8, seed: int = 0) -> TrainingData:
    """Load the examples of a file (see `JsonExamples`), shuffled by `seed`, and of a second file `texts` without
    pictures. Held-out examples are preferably those with pictures."""
    first = JsonExamples(file)
    second = JsonExamples(texts) if texts is not None else None
    shown = [bool(first.request(place).images) for place in range(len(first))]
    if second is not None:
        if any(second.request(place).images for place in range(len(second))):
            raise ValueError(f"{texts}: expected examples without images, got some with images; move them to {file}")
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
    apart = set(sorted(order, key=lambda place: not shown[place])[:held_out])
    rest = [place for place in order if place not in apart]

    def of(places: Sequence[int]) -> ExampleSubset:
        return ExampleSubset(everything, tuple(places))

    return TrainingData(
        mixed=of(rest),
        pictures=of([place for place in rest if shown[place]]),
        texts=of([place for place in rest if not shown[place]]),
        held_out=of([place for place in order if place in apart]),
    )


@dataclass(frozen=True, slots=True)
class Batches:
    """Numbered batches of examples and the batch number of every step; both are deterministic, so a run can be resumed.
    Batches are used in order and repeated; a short last batch is filled from the start. With texts there are two
    streams, and `curriculum` decides the stream of a step; `examples` then are those with pictures."""

    examples: Sequence[Example]
    batch: int
    steps: int
    texts: Sequence[Example] = ()
    curriculum: Curriculum | None = None
    _plan: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.steps < 1 or not len(self.examples):
            raise ValueError(
                f"expected examples, and batch and steps of at least 1, got {len(self.examples)} examples, "
                f"batch {self.batch} and {self.steps} steps; change them"
            )
        if (self.curriculum is None) != (not len(self.texts)):
            raise ValueError(
                f"texts: expected texts together with a curriculum, got {len(self.texts)} texts and curriculum "
                f"{self.curriculum}; pass both or neither"
            )
        plan, used = [], {"pictures": 0, "texts": 0}
        for step in range(self.steps):
            kind = "pictures" if self.curriculum is None else self.curriculum.stream(step, self.steps)
            first, count = (0, self._pictures) if kind == "pictures" else (self._pictures, self.count - self._pictures)
            plan.append(first + used[kind] % count)
            used[kind] += 1
        object.__setattr__(self, "_plan", tuple(plan))

    @property
    def _pictures(self) -> int:
        return -(-len(self.examples) // self.batch)

    @property
    def count(self) -> int:
        return self._pictures + -(-len(self.texts) // self.batch)

    @property
    def needed(self) -> tuple[int, ...]:
        """The distinct batches of all steps, in the order of their first use."""
        return tuple(dict.fromkeys(self._plan))

    @property
    def used(self) -> list[tuple[Sequence[Example], tuple[int, ...]]]:
        """The streams, each with the indices of the examples that any step uses."""
        streams = []
        for stream, first in ((self.examples, 0), (self.texts, self._pictures)):
            numbers = [n - first for n in self.needed if (n < self._pictures) == (first == 0)]
            places = {(n * self.batch + i) % len(stream) for n in numbers for i in range(self.batch)}
            streams.append((stream, tuple(sorted(places))))
        return streams

    def number(self, step: int) -> int:
        """Return the batch number of a step; after the last step, the steps repeat."""
        return self._plan[step % self.steps]

    def __getitem__(self, number: int) -> list[Example]:
        stream, at = (self.examples, number) if number < self._pictures else (self.texts, number - self._pictures)
        return [stream[(at * self.batch + i) % len(stream)] for i in range(self.batch)]
