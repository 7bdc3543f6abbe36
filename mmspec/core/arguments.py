"""Checks of arguments: the one place that says what counts as a number, a whole number or a truth value.

Python takes True for the number 1 and every text for a truth value, and NaN passes each comparison that does not expect it.
Without a check, an argument of a wrong type would therefore change a result in silence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cache
from numbers import Real
from operator import index
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from mmspec.core.config_fields import fits

if TYPE_CHECKING:  # options of commands are checked before torch is loaded
    from torch import Tensor

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


def number_in_text(name: str, text: str, kind: type) -> Any:
    """The number that a text holds.

    Args:
        name: of the setting, for the error.
        text: such as "0.2".
        kind: int, float, or str to take the text as it is.

    Raises:
        ValueError: for a text that is no such number.
    """
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}: expected {wanted}, got {text!r:.60}; correct it") from None


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
