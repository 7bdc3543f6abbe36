from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from torch import Tensor

from mmspec.io.validation import check_fields


@dataclass(frozen=True, slots=True)
class TreeStop:
    """A depth at which a dynamic tree ends where the nodes that it would expand next are too unlikely, in all rows:
    together ("sum", "Dynamic Depth Decoding"), or the likeliest ("best", "Graft")."""

    depth: int
    chance: float  # the probability that the nodes need
    of: Literal["sum", "best"] = "sum"
    nodes: int = 0  # of a draft that ends here; 0 for all

    def __post_init__(self) -> None:
        check_fields(self)
        if self.depth < 1 or self.chance < 0 or self.nodes < 0 or self.of not in ("sum", "best"):
            raise ValueError(
                f"stop: expected a depth from 1 up, a probability, 'sum' or 'best', and nodes from 0 up, got "
                f"{self.depth}, {self.chance}, {self.of!r} and {self.nodes}; change them"
            )

    def is_reached(self, score: Tensor, live: Sequence[bool]) -> bool:
        """The host reads cumulative log-probabilities float32 [B, W]; all live rows have to agree."""
        chance = score.exp()
        rows = (chance.sum(-1) if self.of == "sum" else chance.amax(-1)).tolist()
        return all(value < self.chance for value, alive in zip(rows, live, strict=True) if alive)

    def __str__(self) -> str:
        more = f":{self.of}:{self.nodes}" if self.nodes else "" if self.of == "sum" else f":{self.of}"
        return f"{self.depth}:{self.chance}{more}"


class TreeStops(tuple[TreeStop, ...]):
    """Texts and tuples of fields, such as ((3, 0.3), (5, 0.2)), are converted."""

    def __new__(cls, stops: str | Iterable[TreeStop | Sequence[object]] = ()) -> Self:
        if isinstance(stops, str):
            return cls.from_text(stops)
        try:
            return super().__new__(cls, [stop if isinstance(stop, TreeStop) else TreeStop(*stop) for stop in stops])
        except TypeError as error:
            raise ValueError(
                f"stop: expected stops such as ((3, 0.3), (5, 0.2)), got {stops!r:.60}; use this form"
            ) from error

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse "DEPTH:CHANCE+DEPTH:CHANCE", such as "3:0.3+5:0.2"; "none" for no stop. A stop may name "sum" or "best"
        too, and then its nodes: "2:0.1:best:8"."""
        stops = []
        for piece in () if text == "none" else text.split("+"):
            fields = [piece.split(":")[place : place + 1] for place in range(4)]
            try:
                kinds = (int, float, str, int)
                stops.append(TreeStop(*(kind(*own) for kind, own in zip(kinds, fields, strict=True) if own)))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"stop: expected DEPTH:CHANCE of every stop, such as 3:0.3+5:0.2, got {text!r}; use this form"
                ) from error
        return cls(stops)

    def __str__(self) -> str:
        return "+".join(map(str, self)) or "none"
