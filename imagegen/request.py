"""The settings of a request to a pipeline, and decoding in raster order: the target and the rule that a drafter needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter, check_drafter
from mmspec.core.round.rules.base import Rule, UnsupportedCombination
from mmspec.core.round.rules.by_name import resolve
from mmspec.imagegen.filled_target import Listener
from mmspec.imagegen.target import RasterTarget
from mmspec.imagegen.user_code import check_code
from mmspec.io.validation import plain
from mmspec.methods import Domain

AUTO = "auto"


def derived() -> Any:
    """Return a field that `resolved` fills; a call cannot name it."""
    return field(default=None, repr=False, metadata={"derived": True})


@dataclass(frozen=True, kw_only=True)
class PipelineRequest:
    """Base of a request's settings, the keywords of a pipeline's call; `resolved` sets the last two."""

    domain: ClassVar[Domain] = "image"

    decoding: Any = None  # or a drafter; None for plain decoding
    rule: str | Rule | None = None  # None for "exact", or for the decoding's own rule
    seed: int | Sequence[int] | None = None  # one for all or for each row; None draws it from torch's global generator
    listener: Listener | None = None  # `listener(row, filled)`, called after every round
    condition: Any = derived()
    keys: Keys | None = derived()

    @classmethod
    def arguments(cls) -> Iterator[Field]:
        return (field for field in fields(cls) if "derived" not in field.metadata)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        names = [field.name for field in cls.arguments()]
        if unknown := [name for name in settings if name not in names]:
            raise ValueError(
                f"{unknown[0]}: expected an argument among {', '.join(names)}, got another name; correct the name"
            )
        return cls(**{name: plain(value) for name, value in settings.items()})

    def resolved(self, pipe: Any, prompts: object) -> Self:
        """Return the checked request with the defaults of a pipeline and the condition and keys of its rows."""
        raise NotImplementedError

    def with_rows(self, condition: Any, rows: int, device: Any, **other: Any) -> Self:
        return replace(self, condition=condition, keys=Keys.of(self.seed, rows, device), **other)


@dataclass(frozen=True, slots=True)
class RasterDecoding:
    """Decoding in raster order with a drafter, or without drafts where it is None, under the rule of the request."""

    drafter: Drafter | None

    def prepare(self, model: Any, request: PipelineRequest) -> tuple[RasterTarget, Drafter | None, Rule]:
        if self.drafter is not None:
            check_code(model, request)
        target = request.target(model)
        rule = resolve(
            "exact" if request.rule is None else request.rule, greedy=target.greedy, domain=request.domain, model=model
        )
        return target, self.drafter, rule


def raster_decoding(decoding: Any) -> Any:
    """Return a decoding that prepares its own target unchanged; wrap a drafter, or None, for raster order."""
    check_drafter("decoding", decoding)
    inner = getattr(decoding, "drafter", None)
    if hasattr(inner, "open") and hasattr(inner, "prepare"):
        raise UnsupportedCombination(
            f"decoding: expected a controller over drafts in raster order, got {decoding.name!r}; "
            "use the decoding that it wraps"
        )
    return decoding if hasattr(decoding, "prepare") else RasterDecoding(decoding)
