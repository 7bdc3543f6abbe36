"""The text form of a method, `NAME[:setting=value,...][@WEIGHTS]`, and its only parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.methods.registry import Domain, Kind, MethodInfo, MethodParts, ModelParts, find
from mmspec.methods.settings import Scalar


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method with settings, parsed from a text."""

    method: MethodInfo
    settings: Mapping[str, Scalar] = field(default_factory=dict)  # the values in the text, in its order
    weights: str | None = None  # a folder, a hub id or "zoo:NAME"

    def __str__(self) -> str:
        written = {name: self.method.setting(name).written(value) for name, value in self.settings.items()}
        return joined(self.method.name, written, self.weights)

    @property
    def title(self) -> str:
        """The name in tables, such as "SJD (window 32)"."""
        settings = ", ".join(
            f"{name.replace('_', ' ')} {self.method.setting(name).written(value)}"
            for name, value in self.settings.items()
        )
        return self.method.title + (f" ({settings})" if settings else "")

    def make(self, parts: MethodParts | None = None) -> Any:
        if self.weights and not self.method.needs:
            raise ValueError(
                f"{self.method.kind} {self.method.name!r}: expected no weights, since it needs none, got "
                f"@{self.weights}; leave them out"
            )
        if self.weights:
            parts = WeightsParts(ModelParts() if parts is None else parts, self.method.needs[0], self.weights)
        try:
            return self.method.make(self.settings, parts)
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            raise ValueError(f"{self.method.kind} {self.method.name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class WeightsParts:
    """Parts of a method, the first of which is read from the weights in the text."""

    outer: MethodParts  # the other parts, which also load the weights
    first: str  # the part that the weights are for, the first in `needs`
    weights: str  # behind @

    @property
    def model(self) -> Any:
        return self.outer.model

    def part(self, name: str, source: str | None = None) -> Any:
        return self.outer.part(name, source or (self.weights if name == self.first else None))


def split(text: str, option: str = "method") -> tuple[str, dict[str, str], str | None]:
    """Split `NAME[:setting=value,...][@WEIGHTS]` into name, settings and weights, without checking them. A value may be
    in parentheses. They are required for a method with several settings or weights, at every depth of nesting."""
    if not isinstance(text, str):
        raise ValueError(f"{option}: expected a text such as NAME:setting=value, got {text!r:.60}; write the name")
    front, *weights = _pieces(text, "@", 2)
    name, colon, rest = front.partition(":")
    parts = _pieces(rest, ",") if colon else []
    pairs = [tuple(piece.strip() for piece in part.partition("=")) for part in parts]
    if not name.strip() or weights == [""] or not all(key and sign and value for key, sign, value in pairs):
        raise ValueError(
            f"{option}: expected NAME, NAME:setting=value,... or either with @WEIGHTS, got {text!r}; use this form"
        )
    settings = {key: re.sub(r"^\((.*)\)$", r"\1", value) for key, _, value in pairs}
    if len(settings) < len(pairs):
        raise ValueError(f"{option}: expected each setting once, got {text!r}; leave one out")
    return name.strip(), settings, weights[0] if weights else None


def _pieces(text: str, sign: str, most: int | None = None) -> list[str]:
    """Split a text at a sign into at most `most` pieces. In parentheses the sign belongs to a nested method."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == sign and depth <= 0 and len(pieces) != most:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def joined(name: str, settings: Mapping[str, str], weights: str | None = None) -> str:
    """Return the text of name, settings and weights, the inverse of `split`."""
    pairs = ",".join(
        f"{key}=({value})" if ("," in value or "@" in value) and not value.startswith("(") else f"{key}={value}"
        for key, value in settings.items()
    )
    return name + (f":{pairs}" if pairs else "") + (f"@{weights}" if weights else "")


def parse(
    text: str, domain: Domain | None = None, kind: Kind | None = None, option: str = "", models: str | None = None
) -> MethodCall:
    """Parse a text such as "sjd:window=64" or "eagle@runs/my-drafter"; see `find`. An error suggests the nearest name."""
    name, texts, weights = split(text, option or kind or "method")
    method = find(name, domain, kind, option, models)
    settings = {key: method.setting(key).read(value, f"{method.kind} {name!r}: {key}") for key, value in texts.items()}
    if missing := [setting.name for setting in method.settings if setting.required and setting.name not in settings]:
        form = ",".join(f"{setting.name}=..." for setting in method.settings if setting.required)
        raise ValueError(
            f"{option or method.kind}: expected {name}:{form}, got {text!r}; name {' and '.join(missing)} too"
        )
    return MethodCall(method, settings, weights)


def value_of(value: Any, domain: Domain | None, kind: Kind, parts: MethodParts | None = None) -> Any:
    """Return the object that the value of a setting names, such as "strided:budget=3" of a router; an object is
    returned unchanged. `parts` are those of the surrounding method."""
    if not isinstance(value, str):
        return value
    return parse(value, domain, kind).make(parts)
