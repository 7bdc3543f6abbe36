"""One request of a prompt set, whatever the domain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    """key: its name in the set, which no other prompt has.   turns: what is said, one text after another.
    label: a class, for models that draw classes.   pictures: that it shows, opened when they are asked for.
    category: groups of a set that tables tell apart.   answers: what a right answer is or contains.
    real: a real picture of what is asked, that drawn ones are held against; opened when it is asked for.
    world: seed of the zoo's scene it is about.   source: the record of a file it was read from, which judges may want back.
    """

    key: str
    turns: tuple[str, ...]
    label: int | None = None
    pictures: tuple[Callable[[], Image], ...] = ()
    category: str = ""
    answers: tuple[str, ...] = ()
    real: Callable[[], Image] | None = None
    world: int | None = None
    source: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """What is said first."""
        return self.turns[0]

    def digest(self) -> str:
        """A hash of all that decides what a model makes of it, pictures pixel by pixel."""
        found = hashlib.sha256(repr((self.turns, self.label)).encode())
        for one in self.pictures:
            picture = one()
            found.update(f"{picture.mode}{picture.size}".encode() + picture.tobytes())
        return found.hexdigest()[:16]


def request_fields(prompt: EvaluationPrompt, digest: str, order: int, sample: int, seed: int) -> dict[str, Any]:
    """What the record of a sample says of its request.   order: of the prompt in its set."""
    return {
        "prompt": prompt.key,
        "digest": digest,
        "order": order,
        "category": prompt.category,
        "asked": {"text": prompt.text, "source": prompt.source},
        "sample": sample,
        "seed": seed,
    }


def set_digest(digests: Iterable[str]) -> str:
    """A hash over the prompts of a set in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
