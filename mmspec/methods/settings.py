"""The settings of a method: read off the signature of its class, and from text."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

Scalar = bool | int | float | str | None
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NONE = "none"


@dataclass(frozen=True, slots=True)
class MethodSetting:
    """One setting of a method.

    Attributes:
        name: Its name, an argument of the method's class.
        type: "int", "float", "bool" or "str".
        default: The value that holds where none is given.
        about: What it does, in a line.
        choices: The texts that are allowed; () for any.
        optional: Whether None, written "none", is a value too.
        required: Whether it has no default.
    """

    name: str
    type: str
    default: Scalar = None
    about: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    required: bool = False

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}[self.type]
        if self.choices:
            words = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}".removeprefix(" or ")
        return f"{words} or none" if self.optional else words

    def read(self, text: str, where: str) -> Scalar:
        """The value that a text stands for.

        Args:
            text: The value as it was written.
            where: The method and the setting, for the error.

        Raises:
            ValueError: The text stands for no value of the setting.
        """
        if self.optional and text.lower() == _NONE:
            return None
        if self.choices:
            if text in self.choices:
                return text
            raise ValueError(f"{where}: expected {self.expected}, got {text!r}{nearest(text, self.choices)}")
        try:
            if self.type == "bool":
                return _TRUTHS[text.lower()]
            value = _TYPES[self.type](text)
        except (ValueError, KeyError) as error:
            raise ValueError(f"{where}: expected {self.expected}, got {text!r}; correct it") from error
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{where}: expected {self.expected}, got {text!r}; correct it")
        return value

    def written(self, value: Scalar) -> str:
        """The text that `read` takes back to `value`."""
        if value is None:
            return _NONE
        if isinstance(value, bool):
            return str(value).lower()
        return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def record(self) -> dict[str, Any]:
        """It as JSON; what has its usual value is left out."""
        default = str(self.default) if isinstance(self.default, float) and math.isinf(self.default) else self.default
        made = {"name": self.name, "type": self.type, "default": default, "about": self.about,
                "choices": list(self.choices), "optional": self.optional, "required": self.required}  # fmt: skip
        usual = {"default": None, "about": "", "choices": [], "optional": False, "required": False}
        return {
            name: value for name, value in made.items() if name not in usual or value is not usual[name] and value != []
        }

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> MethodSetting:
        """The setting that `record` was made of."""
        given = dict(record, choices=tuple(record.get("choices", ())))
        if given["type"] == "float" and "default" in given:
            given["default"] = float(given["default"])
        return cls(**given)


def settings_of(make: Callable[..., Any]) -> tuple[MethodSetting, ...]:
    """The settings of a class: arguments of its constructor that are numbers, truth values, texts or one of a few texts.

    Args:
        make: The class, a dataclass or another. Its docstring has a line for each argument.
    """
    hints, about = _hints(make), _lines_about(make)
    found = []
    for name, parameter in inspect.signature(make).parameters.items():
        kind = _kind_of(hints.get(name))
        if kind is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        if hasattr(type(default), "from_text"):
            default = str(default)
        elif default is not None and not isinstance(default, bool | int | float | str):
            continue  # a default that no text can give
        if kind[0] == "float" and type(default) is int:
            default = float(default)
        found.append(MethodSetting(name, kind[0], default, about.get(name, ""), kind[1], kind[2], required))
    return tuple(found)


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The types of the arguments; those whose names are not defined yet, which no text stands for, are left out."""
    constructor, found = make.__init__ if inspect.isclass(make) else make, {}
    for name, written in getattr(constructor, "__annotations__", {}).items():
        try:
            found[name] = eval(written, constructor.__globals__) if isinstance(written, str) else written
        except NameError:
            continue
    return found


def _kind_of(hint: Any) -> tuple[str, tuple[str, ...], bool] | None:
    """Type, choices and whether None is allowed; None of a type that no text stands for."""
    if get_origin(hint) in (Union, UnionType):
        options = [one for one in get_args(hint) if one is not NoneType]
        kinds = [kind for kind in map(_kind_of, options) if kind is not None]
        return (*kinds[0][:2], NoneType in get_args(hint)) if len(kinds) == 1 else None
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return ("str", choices, False) if all(isinstance(one, str) for one in choices) else None
    if hasattr(hint, "from_text"):
        return "str", (), False
    return next(((name, (), False) for name, kind in _TYPES.items() if kind is hint), None)


def converted(make: Callable[..., Any], settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """The settings with texts in the place of objects made into these, by the `from_text` of their class."""
    hints, made = _hints(make), dict(settings)
    for name, value in settings.items():
        kinds = (hints.get(name), *get_args(hints.get(name)))
        read = next((kind.from_text for kind in kinds if hasattr(kind, "from_text")), None)
        if isinstance(value, str) and read is not None:
            made[name] = read(value)
    return made


_ARGUMENT = re.compile(r"^(?P<names>\w+(?:, \w+)*): (?P<about>.*)$")


def _lines_about(make: Callable[..., Any]) -> dict[str, str]:
    """The first sentence that the docstring has of each argument."""
    found: dict[str, str] = {}
    for names, text in _entries(inspect.getdoc(make) or ""):
        sentence = re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")
        found |= {name: sentence for name in names.split(", ")}
    return found


def _entries(doc: str) -> Iterator[tuple[str, str]]:
    """(names, text) of "names: text" lines, with the lines indented below each."""
    names, text, indent = "", "", 0
    for line in (*doc.splitlines(), ""):
        inner, depth = line.strip(), len(line) - len(line.lstrip())
        if names and inner and depth > indent:
            text = f"{text} {inner}"
            continue
        if names:
            yield names, text
        match = _ARGUMENT.match(inner)
        names, text, indent = (match["names"], match["about"], depth) if match else ("", "", 0)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The end of an error about an unknown name: the known name that is nearest, where there is such."""
    found = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else "; choose one of them"
