"""Validation of values from outside: the fields of config files and the arguments of callers.

This is the one place that says what counts as a number, a whole number or a truth value. Python takes True for the number
1 and every text for a truth value, and NaN passes each comparison that does not expect it. Without a check, a value of a
wrong type would change a result in silence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from numbers import Integral, Real
from operator import index
from sys import float_info
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from torch import Tensor


Config = TypeVar("Config")
_LARGEST = 2**63 - 1  # what a size of a tensor can be


def from_fields(
    cls: type[Config], config: Config | Mapping[str, Any], left_out: Sequence[str] = (), what: str = ""
) -> Config:
    """A config as it is, or made of a mapping of field names without those in `left_out`, which only training reads.

    Raises ValueError for unknown and missing fields, where `what` the config is of is said, for values of a wrong type, and
    as the class itself does.
    """
    if isinstance(config, cls):
        return config
    what = what or cls.__name__
    given = {name: value for name, value in config.items() if name not in left_out}
    if unknown := sorted(set(given) - {field.name for field in fields(cls)}):
        raise ValueError(f"config: expected fields of {what}, got {unknown}; remove them")
    needed = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"config: expected the fields {needed} of {what}, got none for {missing}; add them")
    check_types(cls, given)
    try:
        return cls(**given)
    except ArithmeticError as error:
        raise ValueError(f"config: expected sizes of {what} that divide each other, got {given}; correct it") from error


def check_types(cls: type, given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Raises ValueError for a value whose type is not the one its field is annotated with, and for a number that no tensor
    can hold: NaN or Inf, and an integer beyond 64 bits.

    names: the field of a name that is none itself; names without a field pass.
    """
    written, hints = {field.name: field.type for field in fields(cls)}, get_type_hints(cls)
    for name, value in given.items():
        own = (names or {}).get(name, name)
        if own in hints and not fits(value, hints[own]):
            raise ValueError(f"{name}: expected {written[own]}, got {value!r:.60}; correct the config")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. A number also has to fit into a tensor."""
    kind = get_origin(hint)
    if kind in (UnionType, Union):
        return any(fits(value, one) for one in get_args(hint))
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(fits(one, get_args(hint)[0]) for one in value)
    if kind in (list, dict):
        return isinstance(value, kind)
    if kind is Literal:  # which of them there are the config itself says
        return isinstance(value, tuple({type(one) for one in get_args(hint)}))
    if isinstance(value, bool):
        return hint is bool
    if hint is int:
        return isinstance(value, Integral) and abs(value) <= _LARGEST
    if hint is float:
        return isinstance(value, Real) and abs(value) <= float_info.max
    return isinstance(value, hint)


LARGEST_SCALE = 1000.0  # of guidance and of noise: fifty times what is published, and far from any overflow
_PLAIN = (bool, int, float, str, NoneType)


def boolean(name: str, value: object) -> bool:
    """The value, which must be True or False.

    Args:
        name: of the argument, for the error.
        value: from a caller.

    Raises:
        ValueError: for anything else, texts and numbers included.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, got {value!r:.60}; pass one of them")
    return value


def whole(name: str, value: object, least: int | None = None) -> int:
    """The value as an int.

    Args:
        name: of the argument, for the error.
        value: an int, or an integer of numpy or torch.
        least: the smallest value allowed, None for no limit.

    Raises:
        ValueError: for floats, truth values and texts, and for a number below `least`.
    """
    try:
        number = None if _is_truth(value) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{name}: expected a whole number, got {value!r:.60}; write one without a fraction")
    if least is not None and number < least:
        raise ValueError(f"{name}: expected at least {least}, got {number}; raise it")
    return number


def number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf, *, infinite: bool = False
) -> float:
    """The value as a float.

    Args:
        name: of the argument, for the error.
        value: an int or float, also of numpy, or a tensor that holds one number.
        least: the smallest value allowed.
        most: the largest value allowed.
        infinite: whether an infinity is a value like others.

    Raises:
        ValueError: for truth values and texts, NaN, infinities without `infinite`, and numbers outside the limits.
    """
    is_number = isinstance(value, Real) or (hasattr(value, "numel") and value.numel() == 1)
    try:
        found = float(value) if is_number and not _is_truth(value) else math.nan
    except OverflowError:
        found = math.nan
    if not least <= found <= most or (math.isinf(found) and not infinite):
        raise ValueError(f"{name}: expected {_range(least, most, infinite)}, got {value!r:.60}; change it")
    return found


def check_fields(settings: object, infinite: Collection[str] = ()) -> None:
    """Checks each field of a dataclass against its annotation, as far as that names numbers, truth values, texts or None.

    Args:
        settings: the dataclass, usually from its `__post_init__`.
        infinite: the fields that may be infinite.

    Raises:
        ValueError: for a value of another type, such as True for a number, and for NaN and infinities.
    """
    hints = _hints(type(settings))
    for field in fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        if isinstance(value, float) and math.isinf(value) and field.name in infinite:
            continue
        if not _fits(value, hint):
            wanted = "a finite number" if isinstance(value, float) and not math.isfinite(value) else field.type
            raise ValueError(f"{field.name}: expected {wanted}, got {value!r:.60}; change it")


def check_words(texts: Sequence[str], ids: Tensor, mask: Tensor, tokenizer: Any) -> None:
    """Checks that a tokenizer knows a word of each prompt: without one, any picture would do.

    Args:
        texts: the B prompts. An empty text says nothing on purpose and passes.
        ids: int64 [B, L], what the tokenizer made of them.
        mask: int64 [B, L], 0 at padding.
        tokenizer: of transformers.

    Raises:
        ValueError: for a text without a known word.
    """
    special = set(tokenizer.all_special_ids)
    for text, row, real in zip(texts, ids, mask.bool(), strict=True):
        known = tokenizer.convert_ids_to_tokens([one for one in row[real].tolist() if one not in special])
        if text.strip() and not any(letter.isalnum() for token in known for letter in token):
            raise ValueError(f"prompts: expected words this model knows, got none in {text!r}; say it in other words")


@cache
def _hints(cls: type) -> dict[str, Any]:
    unknown: dict[str, Any] = {}  # names that their module imports for a type checker alone
    while True:
        try:
            return get_type_hints(cls, localns=unknown)
        except NameError as error:
            unknown[error.name] = object


def _fits(value: object, hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    plain = [one for one in members if one in _PLAIN or get_origin(one) in (Literal, tuple)]
    if Any in members or object in members:
        return True
    if value is None or isinstance(value, (bool, Real, str)):
        return any(fits(value, one) for one in plain)
    others = len(plain) < len(members)  # objects, which the class itself checks
    return others or any(fits(value, one) for one in plain)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _range(least: float, most: float, infinite: bool) -> str:
    if most == math.inf:
        unlimited = "a number or an infinity" if infinite else "a number"
        return unlimited if least == -math.inf else f"a number of {least:g} or more"
    return f"a number from {least:g} to {most:g}"
