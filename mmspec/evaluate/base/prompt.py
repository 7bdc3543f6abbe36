"""A prompt of a prompt set, in any domain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class EvaluationPrompt:
    key: str  # unique in the set
    turns: tuple[str, ...]  # the user's texts
    label: int | None = None  # the class, for models that draw classes
    pictures: tuple[Callable[[], Image], ...] = ()  # functions that open them
    category: str = ""  # a group of the set that tables distinguish
    answers: tuple[str, ...] = ()  # the right answer, or texts that it contains
    real: Callable[[], Image] | None = None  # opens a real picture of the subject, for comparison with drawn pictures
    world: int | None = None  # the seed of the zoo's scene of the prompt
    source: Mapping[str, Any] | None = None  # the record of the file from which the prompt was read; judges may need it

    @property
    def text(self) -> str:
        """Return the text of the first turn."""
        return self.turns[0]

    def digest(self) -> str:
        """Return a hash of all that decides a model's output and its score, including every pixel of the pictures."""
        judged = (self.answers,) if self.answers else ()
        digest = hashlib.sha256(repr((self.turns, self.label, *judged)).encode())
        for make in self.pictures:
            picture = make()
            digest.update(f"{picture.mode}{picture.size}".encode() + picture.tobytes())
        return digest.hexdigest()[:16]


def request_fields(prompt: EvaluationPrompt, digest: str, order: int, sample: int, seed: int) -> dict[str, Any]:
    """Return the fields of a request in the record of a sample; `order` is the number of the prompt in its set."""
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
    """Return a hash over the prompts of a set in their order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
