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
from mmspec.imagegen.user_code import check_code
from mmspec.io.validation import plain
from mmspec.methods import Domain

AUTO = "auto"


def derived() -> Any:
    """Return a field that `resolved` fills; a call cannot name it."""
    return field(default=None, repr=False, metadata={"derived": True})


@dataclass(frozen=True, kw_only=True)
class PipelineRequest:
    """Base of the settings of a request: the fields are the keyword arguments of a pipeline's call.

    Args:
        decoding: A decoding or a drafter; None for plain decoding.
        rule: A Rule or its text; None for "exact", or for the decoding's own rule.
        seed: An int, a sequence with an int per row, or None to draw a seed from torch's global generator.
        listener: The progress callback `listener(row, filled)`, called after every round.
        condition: The prompts in the model's form; set by `resolved`.
        keys: The random keys of the rows; set by `resolved`.
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
        """Yield the fields that a call can name."""
        return (field for field in fields(cls) if "derived" not in field.metadata)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """Return the request with these settings.

        Raises:
            ValueError: A name is no argument.
        """
        names = [field.name for field in cls.arguments()]
        if unknown := [name for name in settings if name not in names]:
            raise ValueError(
                f"{unknown[0]}: expected an argument among {', '.join(names)}, got another name; correct the name"
            )
        return cls(**{name: plain(value) for name, value in settings.items()})

    def resolved(self, pipe: Any, prompts: object) -> Self:
        """Return the checked request with the defaults of a pipeline and the condition and keys of its rows.

        Args:
            pipe: The pipeline.
            prompts: The prompts of the call.

        Raises:
            ValueError: The pipeline does not support the prompts or a setting.
        """
        raise NotImplementedError

    def with_rows(self, condition: Any, rows: int, device: Any, **other: Any) -> Self:
        """Return the request with the condition of its rows, their keys and other fields."""
        return replace(self, condition=condition, keys=Keys.of(self.seed, rows, device), **other)


@dataclass(frozen=True, slots=True)
class RasterDecoding:
    """Decoding in raster order with a drafter, or without drafts where it is None, under the rule of the request."""

    drafter: Drafter | None

    def prepare(self, model: Any, request: PipelineRequest) -> tuple[RasterTarget, Drafter | None, Rule]:
        """Return the target, the drafter and the rule of a resolved request.

        Raises:
            ValueError: The rule is unknown, or users' code around the model's modules does not support drafts.
        """
        if self.drafter is not None:
            check_code(model, request)
        target = request.target(model)
        rule = resolve(
            "exact" if request.rule is None else request.rule, greedy=target.greedy, domain=request.domain, model=model
        )
        return target, self.drafter, rule


def raster_decoding(decoding: Any) -> Any:
    """Return a decoding that prepares its own target unchanged; wrap a drafter, or None, for raster order.

    Raises:
        ValueError: The object is no drafter, or it is a controller over a decoding that prepares its own target.
    """
    check_drafter("decoding", decoding)
    inner = getattr(decoding, "drafter", None)
    if hasattr(inner, "open") and hasattr(inner, "prepare"):
        raise UnsupportedCombination(f"decoding: expected a controller over drafts in raster order, got {decoding.name!r}; "
                                     "use the decoding that it wraps")  # fmt: skip
    return decoding if hasattr(decoding, "prepare") else RasterDecoding(decoding)
