"""The settings of a request to a pipeline, and decoding in raster order: the target and the rule that a drafter needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter, check_drafter
from mmspec.core.rules.base import Rule, UnsupportedCombination
from mmspec.core.rules.by_name import resolve
from mmspec.imagegen.filled_target import Listener
from mmspec.imagegen.target import RasterTarget
from mmspec.methods import Domain

AUTO = "auto"


def derived() -> Any:
    """A field that `resolved` fills; a call cannot name it."""
    return field(default=None, repr=False, metadata={"derived": True})


@dataclass(frozen=True, kw_only=True)
class PipelineRequest:
    """Base of the settings of a request: the fields are the keyword arguments of a pipeline's call.

    decoding: None decodes plainly through the same loop; else a decoding or a drafter.
    rule: a Rule or its text; None for "exact", or the decoding's own.
    seed: an int, one int per row, or None to draw one from torch's global generator.
    listener(row, filled): progress, after every round.
    condition, keys: the model's form of the prompts and the random keys of the rows; see `resolved`.
    domain: where the names of rules are looked for.
    """

    domain: ClassVar[Domain] = "image"

    decoding: Any = None
    rule: str | Rule | None = None
    seed: int | Sequence[int] | None = None
    listener: Listener | None = None
    condition: Any = derived()
    keys: Keys | None = derived()

    @classmethod
    def arguments(cls) -> Iterator[Field]:
        """The fields that a call can name."""
        return (one for one in fields(cls) if "derived" not in one.metadata)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """The request with these settings.   Raises ValueError for a name that is no argument."""
        names = [one.name for one in cls.arguments()]
        if unknown := [name for name in settings if name not in names]:
            raise ValueError(
                f"{unknown[0]}: expected an argument among {', '.join(names)}, got another name; correct it"
            )
        return cls(**settings)

    def resolved(self, pipe: Any, prompts: object) -> Self:
        """The checked request with the defaults of a pipeline and the condition and keys of its rows.

        Args:
            pipe: the pipeline.
            prompts: as the pipeline takes them.

        Raises:
            ValueError: for prompts or settings that the pipeline does not take.
        """
        raise NotImplementedError

    def with_rows(self, condition: Any, rows: int, device: Any, **other: Any) -> Self:
        """The request with the condition of its rows, their keys and other fields."""
        return replace(self, condition=condition, keys=Keys.of(self.seed, rows, device), **other)


@dataclass(frozen=True, slots=True)
class RasterDecoding:
    """Decoding in raster order with a drafter, or plainly with None, under a rule of the request's choice."""

    drafter: Drafter | None

    def prepare(self, model: Any, request: PipelineRequest) -> tuple[RasterTarget, Drafter | None, Rule]:
        """The target, the drafter and the rule of a resolved request.   Raises ValueError for an unknown rule."""
        target = request.target(model)
        rule = resolve(request.rule or "exact", greedy=target.greedy, domain=request.domain, model=model)
        return target, self.drafter, rule


def raster_decoding(decoding: Any) -> Any:
    """A decoding that prepares its own target as it is; anything else is a drafter in raster order, or None.

    Raises ValueError for an object that drafts nothing, and for a controller over a decoding that prepares its own target.
    """
    check_drafter("decoding", decoding)
    inner = getattr(decoding, "drafter", None)
    if hasattr(inner, "open") and hasattr(inner, "prepare"):
        raise UnsupportedCombination(f"decoding: expected a controller over drafts in raster order, got {decoding.name!r}; "
                                     "use the decoding that it wraps")  # fmt: skip
    return decoding if hasattr(decoding, "prepare") else RasterDecoding(decoding)
