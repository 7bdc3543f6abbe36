"""What a run trains on and what it is measured on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmspec.vlm.training.examples import Example, JsonExamples


@dataclass(frozen=True, slots=True)
class Data:
    """mixed: examples of runs without a curriculum.   pictures, texts: the two streams of one.
    held_out: requests no training sees.   licence: of the data, as far as known."""

    mixed: Sequence[Example]
    pictures: Sequence[Example] = ()
    texts: Sequence[Example] = ()
    held_out: Sequence[Example] = ()
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some examples of a sequence, each read when it is asked for."""

    source: Sequence[Example]
    index: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Example:
        return self.source[self.index[place]]


@dataclass(frozen=True, slots=True)
class Joined:
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


def data_of(file: Path, texts: Path | None = None, held_out: int = 8, seed: int = 0) -> Data:
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
    everything = first if second is None else Joined(first, second)
    order = list(range(len(shown)))
    random.Random(seed).shuffle(order)
    kept = set(sorted(order, key=lambda place: not shown[place])[:held_out])
    rest = [place for place in order if place not in kept]

    def of(places: Sequence[int]) -> Chosen:
        return Chosen(everything, tuple(places))

    return Data(
        mixed=of(rest),
        pictures=of([place for place in rest if shown[place]]),
        texts=of([place for place in rest if not shown[place]]),
        held_out=of([place for place in order if place in kept]),
    )
