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
    """A method with settings, parsed from a text.

    Attributes:
        method: The method.
        settings: The values in the text, in its order.
        weights: A folder, a hub id or "zoo:NAME"; None where the text names none.
    """

    method: MethodInfo
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    weights: str | None = None

    def __str__(self) -> str:
        """Return the text, the inverse of `parse`."""
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
        """Construct the method.

        Raises:
            ValueError: The class refuses a setting, or a part is not available. The message names the method.
        """
        if self.weights and not self.method.needs:
            raise ValueError(f"{self.method.kind} {self.method.name!r}: expected no weights, since it needs none, got "
                             f"@{self.weights}; leave them out")  # fmt: skip
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
    """Parts of a method, the first of which is read from the weights in the text.

    Attributes:
        outer: The other parts, which also load the weights.
        first: The name of the part that the weights are for, the first in `needs`.
        weights: The weights behind @.
    """

    outer: MethodParts
    first: str
    weights: str

    @property
    def model(self) -> Any:
        """The target."""
        return self.outer.model

    def part(self, name: str, source: str | None = None) -> Any:
        """See `MethodParts.part`."""
        return self.outer.part(name, source or (self.weights if name == self.first else None))


def split(text: str, option: str = "method") -> tuple[str, dict[str, str], str | None]:
    """Split a text into name, settings and weights, without checking them.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`. A value may be in parentheses. They are
            required for a method with several settings or weights, at every depth of nesting.
        option: The argument or option that contains the text, for the error.

    Raises:
        ValueError: The text has another form, or repeats a setting.
    """
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
    """Parse the text form of a method.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`, such as "sjd:window=64" or "eagle@runs/my-drafter".
        domain: The domain to search; None for all.
        kind: The kind to search; None for all.
        option: The argument or option that contains the text, for errors; the kind by default.
        models: The kind of models, None for all; see `methods`.

    Raises:
        ValueError: The text has another form, or the name, a setting or a value is unknown. The message lists the known
            names and suggests the nearest.
    """
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
    """Return the object that the value of a setting names, such as "strided:budget=3" of a router.

    Args:
        value: A text, or the object itself, which is returned unchanged.
        domain: The domain to search; None for all.
        kind: The kind of the method.
        parts: The parts of the surrounding method; None where there are none.

    Raises:
        ValueError: The text is no method (see `parse`), or a part is not available.
    """
    if not isinstance(value, str):
        return value
    return parse(value, domain, kind).make(parts)
