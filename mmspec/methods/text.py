"""A method in one line of text, `NAME[:setting=value,...][@WEIGHTS]`: the only parser of this form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.methods.registry import Domain, Kind, MethodInfo, MethodParts, ModelParts, find
from mmspec.methods.settings import Scalar


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method with settings, as a text asks for it.

    Attributes:
        method: The method.
        settings: The values that were given, in the order of the text.
        weights: A folder, a hub id or "zoo:NAME"; None where none are named.
    """

    method: MethodInfo
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    weights: str | None = None

    def __str__(self) -> str:
        """The text that `parse` takes back to this."""
        written = {name: self.method.setting(name).written(value) for name, value in self.settings.items()}
        return joined(self.method.name, written, self.weights)

    @property
    def title(self) -> str:
        """What tables call it: "SJD (window 32)"."""
        given = ", ".join(
            f"{name.replace('_', ' ')} {self.method.setting(name).written(value)}"
            for name, value in self.settings.items()
        )
        return self.method.title + (f" ({given})" if given else "")

    def make(self, parts: MethodParts | None = None) -> Any:
        """The object.   Raises ValueError where a setting is refused or a part is not at hand; it names the method."""
        if self.weights and not self.method.needs:
            raise ValueError(f"{self.method.kind} {self.method.name!r}: expected no weights, which it does without, got "
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
    """Parts of which one is read from the weights that a text names.

    Attributes:
        outer: The other parts, and the reader of this one.
        first: The part that has the weights, the first that the method needs.
        weights: Those behind @.
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


# commas and @ in parentheses belong to a method that is the value of a setting
_OUTSIDE = r"(?![^()]*\))"


def split(text: str, what: str = "method") -> tuple[str, dict[str, str], str | None]:
    """Name, settings and weights of a text, none of them checked.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`. A value may stand in parentheses, as a method with several settings must.
        what: The argument or option that it was given for, for the error.

    Raises:
        ValueError: The text has another form, or a setting comes twice.
    """
    front, *weights = re.split(f"@{_OUTSIDE}", text, maxsplit=1)
    name, colon, rest = front.partition(":")
    parts = re.split(f",{_OUTSIDE}", rest) if colon else []
    pairs = [tuple(piece.strip() for piece in part.partition("=")) for part in parts]
    if not name.strip() or weights == [""] or not all(key and sign and value for key, sign, value in pairs):
        raise ValueError(
            f"{what}: expected NAME, NAME:setting=value,... or either with @WEIGHTS, got {text!r}; write it so"
        )
    settings = {key: re.sub(r"^\((.*)\)$", r"\1", value) for key, _, value in pairs}
    if len(settings) < len(pairs):
        raise ValueError(f"{what}: expected each setting once, got {text!r}; leave one out")
    return name.strip(), settings, weights[0] if weights else None


def joined(name: str, settings: Mapping[str, str], weights: str | None = None) -> str:
    """The text that `split` takes apart again."""
    given = ",".join(
        f"{key}=({value})" if ("," in value or "@" in value) and not value.startswith("(") else f"{key}={value}"
        for key, value in settings.items()
    )
    return name + (f":{given}" if given else "") + (f"@{weights}" if weights else "")


def parse(
    text: str, domain: Domain | None = None, kind: Kind | None = None, what: str = "", models: str | None = None
) -> MethodCall:
    """The method that a text asks for.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`, such as "sjd:window=64" or "eagle@runs/my-drafter".
        domain: Where the name is looked for, None for everywhere.
        kind: What it is, None for any.
        what: The argument or option that it was given for, for errors; the kind by default.
        models: The kind of models that it is for, None for any; see `methods`.

    Raises:
        ValueError: The text has another form, or the name, a setting or a value is unknown. The sentence lists those that
            there are and says which is nearest.
    """
    name, given, weights = split(text, what or kind or "method")
    found = find(name, domain, kind, what, models)
    settings = {key: found.setting(key).read(value, f"{found.kind} {name!r}: {key}") for key, value in given.items()}
    if missing := [one.name for one in found.settings if one.required and one.name not in settings]:
        form = ",".join(f"{one.name}=..." for one in found.settings if one.required)
        raise ValueError(
            f"{what or found.kind}: expected {name}:{form}, got {text!r}; name {' and '.join(missing)} too"
        )
    return MethodCall(found, settings, weights)


def value_of(value: Any, domain: Domain | None, kind: Kind, parts: MethodParts | None = None) -> Any:
    """The object that the value of a setting names, such as "strided:budget=3" of a router; an object as it is.

    Args:
        value: The text or the object.
        domain: Where the name is looked for, None for everywhere.
        kind: What it is.
        parts: Those of the method around it; None where there are none.

    Raises:
        ValueError: As `parse`, and where a part is not at hand.
    """
    if not isinstance(value, str):
        return value
    return parse(value, domain, kind).make(parts)
