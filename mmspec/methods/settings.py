from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from sys import modules
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Scalar = bool | int | float | str | None
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NONE = "none"


@dataclass(frozen=True, slots=True)
class MethodSetting:
    """A setting of a method, an argument of its class."""

    name: str
    type: str  # "int", "float", "bool" or "str"
    default: Scalar = None  # the value of an omitted setting
    about: str = ""  # a line
    choices: tuple[str, ...] = ()  # the allowed texts; () for any
    optional: bool = False  # None, written "none", is allowed
    required: bool = False

    @property
    def expected(self) -> str:
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}[self.type]
        if self.choices:
            words = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}".removeprefix(" or ")
        return f"{words} or none" if self.optional else words

    def read(self, text: str, where: str) -> Scalar:
        """Return the value of a text; `where` names the method and the setting in the error."""
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
        """Return the text of a value, the inverse of `read`."""
        if value is None:
            return _NONE
        if isinstance(value, bool):
            return str(value).lower()
        return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)

    def record(self) -> dict[str, Any]:
        """Return the setting as a JSON object without fields that have their usual value."""
        default = str(self.default) if isinstance(self.default, float) and math.isinf(self.default) else self.default
        fields = {
            "name": self.name,
            "type": self.type,
            "default": default,
            "about": self.about,
            "choices": list(self.choices),
            "optional": self.optional,
            "required": self.required,
        }
        usual = {"default": None, "about": "", "choices": [], "optional": False, "required": False}
        return {
            name: value
            for name, value in fields.items()
            if name not in usual or value is not usual[name] and value != []
        }

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> MethodSetting:
        fields = dict(record, choices=tuple(record.get("choices", ())))
        if fields["type"] == "float" and "default" in fields:
            fields["default"] = float(fields["default"])
        return cls(**fields)


def settings_of(make: Callable[..., Any]) -> tuple[MethodSetting, ...]:
    """Return a class's settings: constructor arguments that are numbers, truth values, texts or choices of texts."""
    hints, about = _hints(make), _lines_about(make)
    settings = []
    for name, parameter in inspect.signature(make).parameters.items():
        kind = _kind_of(hints.get(name))
        if kind is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        if hasattr(type(default), "from_text"):
            default = str(default)
        elif default is not None and not isinstance(default, bool | int | float | str):
            continue  # no text can express this default
        if kind[0] == "float" and type(default) is int:
            default = float(default)
        settings.append(MethodSetting(name, kind[0], default, about.get(name, ""), kind[1], kind[2], required))
    return tuple(settings)


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the arguments, without those whose names are not defined yet: no text can express them."""
    constructor, hints = make.__init__ if inspect.isclass(make) else make, {}
    # fields of a dataclass may be inherited from a class of another module
    homes = [vars(modules[base.__module__]) for base in reversed(make.__mro__)] if inspect.isclass(make) else []
    known = {name: value for home in (*homes, getattr(constructor, "__globals__", {})) for name, value in home.items()}
    for name, written in getattr(constructor, "__annotations__", {}).items():
        try:
            hints[name] = eval(written, known) if isinstance(written, str) else written
        except NameError:
            continue
    return hints


def _kind_of(hint: Any) -> tuple[str, tuple[str, ...], bool] | None:
    """Return type, choices and whether None is allowed; None for a type that no text can express."""
    if get_origin(hint) in (Union, UnionType):
        options = [option for option in get_args(hint) if option is not NoneType]
        kinds = [kind for kind in map(_kind_of, options) if kind is not None]
        return (*kinds[0][:2], NoneType in get_args(hint)) if len(kinds) == 1 else None
    if get_origin(hint) is Annotated:
        return _kind_of(get_args(hint)[0])
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return ("str", choices, False) if all(isinstance(option, str) for option in choices) else None
    if hasattr(hint, "from_text"):
        return "str", (), False
    return next(((name, (), False) for name, kind in _TYPES.items() if kind is hint), None)


def converted(make: Callable[..., Any], settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the settings with texts converted to objects by the `from_text` of their class."""
    hints, values = _hints(make), dict(settings)
    for name, value in settings.items():
        kinds = (hints.get(name), *get_args(hints.get(name)))
        read = next((kind.from_text for kind in kinds if hasattr(kind, "from_text")), None)
        if isinstance(value, str) and read is not None:
            values[name] = read(value)
    return values


_ARGUMENT = re.compile(r"^(?P<names>\w+(?:, \w+)*): (?P<about>.*)$")


def _lines_about(make: Callable[..., Any]) -> dict[str, str]:
    """Return the first sentence about each argument in the docstring."""
    lines: dict[str, str] = {}
    for names, text in _entries(inspect.getdoc(make) or ""):
        sentence = re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")
        lines |= {name: sentence for name in names.split(", ")}
    return lines


def _entries(doc: str) -> Iterator[tuple[str, str]]:
    """Yield (names, text) of "names: text" lines, joined with the lines that are indented below."""
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
    """Return the end of an error about an unknown name: the nearest known name, if any is close."""
    matches = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else "; choose one of them"
