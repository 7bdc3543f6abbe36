"""Validation of external values: the fields of config files and the arguments of callers, whose `name` is for the
error. In Python, True is the number 1, every text has a truth value, and NaN passes comparisons that do not expect it.
Without a check, a value of a wrong type would silently change a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from numbers import Integral, Real
from operator import index
from sys import float_info
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from torch import Tensor


Config = TypeVar("Config")
_LARGEST = 2**63 - 1  # the largest size of a tensor


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number in the annotation of a field: `share: Annotated[float, Range(0, 1)]`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None  # an end that does not belong to the range, as `below`
    below: float | None = None
    infinite: bool = False  # whether the number may be infinite
    hint: str = ""  # the remedy in the error

    def __contains__(self, value: Any) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        ends = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{words} {end}" for words, end in ends.items() if end is not None) or "a number"


Size = Annotated[int, Range(1)]
Count = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(above=0)]


def from_fields(
    cls: type[Config], config: Config | Mapping[str, Any], left_out: Sequence[str] = (), owner: str = ""
) -> Config:
    """Return a config, constructed from a mapping if necessary; a config is returned unchanged. Fields in `left_out`
    are ignored, which only training reads. `owner`, for errors, is the class name by default."""
    if isinstance(config, cls):
        return config
    owner = owner or cls.__name__
    values = {name: plain(value) for name, value in config.items() if name not in left_out}
    if unknown := sorted(set(values) - {field.name for field in fields(cls)}):
        raise ValueError(f"config: expected fields of {owner}, got {unknown}; remove them")
    needed = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"config: expected the fields {needed} of {owner}, got none for {missing}; add them")
    check_types(cls, values)
    try:
        return cls(**values)
    except ArithmeticError as error:
        raise ValueError(
            f"config: expected sizes of {owner} that divide each other, got {values}; correct it"
        ) from error


def check_types(cls: type, given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Check values against the annotated types of a dataclass; numbers also have to fit into a tensor (64 bits, neither
    NaN nor Inf). `names` has the field of a name that is no field itself. Names without a field are not checked."""
    hints = _hints(cls)
    for name, value in given.items():
        own = (names or {}).get(name, name)
        if own in hints and not fits(value, hints[own]):
            raise _refusal(name, value, hints[own], "correct the config")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type and in its range. A number also has to fit into a tensor."""
    kind = get_origin(hint)
    if kind is Annotated:
        own, limits = get_args(hint)
        infinite = limits.infinite and isinstance(value, float) and math.isinf(value)
        return (infinite or fits(value, own)) and value in limits
    if kind in (UnionType, Union):
        return any(fits(value, member) for member in get_args(hint))
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(fits(member, get_args(hint)[0]) for member in value)
    if kind in (list, dict):
        return isinstance(value, kind)
    if kind is Literal:
        return any(type(value) is type(member) and value == member for member in get_args(hint))
    if isinstance(value, bool):
        return hint is bool
    if hint is int:
        return isinstance(value, Integral) and abs(value) <= _LARGEST
    if hint is float:
        return isinstance(value, Real) and abs(value) <= float_info.max
    return isinstance(value, hint)


LARGEST_SCALE = 1000.0  # of guidance and noise: fifty times the published scales, and far from any overflow
_PLAIN = (bool, int, float, str, NoneType)


def plain(value: Any) -> Any:
    """Return a number or truth value of numpy or torch, without axes and also in a tuple, as Python's own."""
    if type(value) is tuple:
        return tuple(map(plain, value))
    if not hasattr(value, "item") or getattr(value, "ndim", None) != 0 or getattr(value, "is_meta", False):
        return value
    own = value.item()
    return own if isinstance(own, bool | int | float) else value


def boolean(name: str, value: object) -> bool:
    """Return the value, True or False, also of numpy or torch; a number or a text is refused."""
    truth = plain(value)
    if not isinstance(truth, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r:.60}; pass True or False")
    return truth


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return the value, an int or an integer of numpy or torch, as an int; a float, a truth value or a text is refused."""
    try:
        number = None if isinstance(plain(value), bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{name}: expected a whole number, got {value!r:.60}; pass a number without a fraction")
    if least is not None and number < least:
        raise ValueError(f"{name}: expected at least {least}, got {number}; raise it")
    return number


def texts_of(name: str, value: object) -> list[str]:
    """Return texts as a list, which may not be empty. A text alone becomes a list with this text, not its letters."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{name}: expected texts, got {value!r:.60}; pass a list of texts")
    return list(texts)


def number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf, *, infinite: bool = False
) -> float:
    """Return the value, an int or float, also of numpy, or a tensor with a single number, as a float from `least` to
    `most`, both included. A truth value, a text, NaN, and infinities without `infinite`, are refused."""
    own = plain(value)
    is_number = isinstance(own, Real) or (hasattr(own, "numel") and own.numel() == 1)
    try:
        result = float(own) if is_number and not isinstance(own, bool) else math.nan
    except OverflowError:
        result = math.nan
    if not least <= result <= most or (math.isinf(result) and not infinite):
        raise ValueError(f"{name}: expected {_range(least, most, infinite)}, got {value!r:.60}; change it")
    return result


def check_fields(settings: object) -> None:
    """Check each field of a dataclass, usually as its `__post_init__`, against its annotation, if this names numbers,
    truth values, texts or None. Numbers of numpy or torch become Python's own."""
    for name, hint in _checked_hints(type(settings)).items():
        value = getattr(settings, name)
        if _takes_numbers(hint) and plain(value) is not value:
            value = plain(value)
            object.__setattr__(settings, name, value)
        if not _fits(value, hint):
            raise _refusal(name, value, hint, "change it")


def check_words(texts: Sequence[str], ids: Tensor, mask: Tensor, tokenizer: Any) -> None:
    """Check that a tokenizer knows a word of each prompt, since any picture would match a prompt without known words.
    The B prompts have tokens `ids` int64 [B, L] and a `mask` int64 [B, L], 0 at padding; an empty text is allowed."""
    special = set(tokenizer.all_special_ids)
    for text, row, real in zip(texts, ids, mask.bool(), strict=True):
        known = tokenizer.convert_ids_to_tokens([token for token in row[real].tolist() if token not in special])
        if text.strip() and not any(letter.isalnum() for token in known for letter in token):
            raise ValueError(f"prompts: expected words this model knows, got none in {text!r}; use other words")


@cache
def _hints(cls: type) -> dict[str, Any]:
    unknown: dict[str, Any] = {}  # names that are imported for type checkers only
    while True:
        try:
            return get_type_hints(cls, localns=unknown, include_extras=True)
        except NameError as error:
            unknown[error.name] = object


@cache
def _checked_hints(cls: Any) -> dict[str, Any]:
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)


def _fits(value: object, hint: Any) -> bool:
    members = _members(hint)
    plain = [member for member in members if member in _PLAIN or get_origin(member) in (Annotated, Literal, tuple)]
    if Any in members or object in members:
        return True
    if value is None or isinstance(value, (bool, Real, str)):
        return any(fits(value, member) for member in plain)
    others = len(plain) < len(members)  # objects, which the class checks itself
    return others or any(fits(value, member) for member in plain)


def _takes_numbers(hint: Any) -> bool:
    return any(member in (bool, int, float) or get_origin(member) in (Annotated, tuple) for member in _members(hint))


def _refusal(name: str, value: object, hint: Any, remedy: str) -> ValueError:
    """Return the error of a value that does not fit: it names the range if the type alone is right."""
    ranges = [get_args(member) for member in _members(hint) if get_origin(member) is Annotated]
    wanted = next((limits for kind, limits in ranges if fits(value, kind)), None)
    if wanted is None:
        is_finite = not isinstance(value, float) or math.isfinite(value)
        *options, last = _options(hint) if is_finite else ["a finite number"]
        wanted = f"{', '.join(options)} or {last}" if options else last
    else:
        remedy = wanted.hint or remedy
    return ValueError(f"{name}: expected {wanted}, got {value!r:.60}; {remedy}")


def _options(hint: Any) -> list[str]:
    """Return the words for each type or value that an annotation allows."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return [repr(part) for part in parts]
    if kind is Annotated:
        return _options(parts[0])
    if kind in (UnionType, Union):
        return [option for part in parts for option in _options(part)]
    return ["None" if hint is NoneType else hint.__name__ if isinstance(hint, type) else str(hint)]


def _range(least: float, most: float, infinite: bool) -> str:
    if most == math.inf:
        unlimited = "a number or an infinity" if infinite else "a number"
        return unlimited if least == -math.inf else f"a number of {least:g} or more"
    return f"a number from {least:g} to {most:g}"
