"""A method in one line of text, `NAME[:setting=value,...][@WEIGHTS]`: the only parser of this form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmspec.methods.registry import Domain, Kind, MethodInfo, MethodParts, find
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
        given = ",".join(f"{name}={self.method.setting(name).written(value)}" for name, value in self.settings.items())
        return self.method.name + (f":{given}" if given else "") + (f"@{self.weights}" if self.weights else "")

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
        try:
            return self.method.make(self.settings, parts)
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            raise ValueError(f"{self.method.kind} {self.method.name!r}: {error}") from error


def split(text: str, what: str = "method") -> tuple[str, dict[str, str], str | None]:
    """Name, settings and weights of a text, none of them checked.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`.
        what: The argument or option that it was given for, for the error.

    Raises:
        ValueError: The text has another form, or a setting comes twice.
    """
    front, at, weights = text.partition("@")
    name, colon, rest = front.partition(":")
    pairs = [tuple(piece.strip() for piece in part.partition("=")) for part in rest.split(",")] if colon else []
    if not name.strip() or (at and not weights) or not all(key and sign and value for key, sign, value in pairs):
        raise ValueError(
            f"{what}: expected NAME, NAME:setting=value,... or either with @WEIGHTS, got {text!r}; write it so"
        )
    settings = {key: value for key, _, value in pairs}
    if len(settings) < len(pairs):
        raise ValueError(f"{what}: expected each setting once, got {text!r}; leave one out")
    return name.strip(), settings, weights or None


def parse(text: str, domain: Domain | None = None, kind: Kind | None = None, what: str = "") -> MethodCall:
    """The method that a text asks for.

    Args:
        text: `NAME[:setting=value,...][@WEIGHTS]`, such as "scd:window=64" or "eagle@runs/my-drafter".
        domain: Where the name is looked for, None for everywhere.
        kind: What it is, None for any.
        what: The argument or option that it was given for, for errors; the kind by default.

    Raises:
        ValueError: The text has another form, or the name, a setting or a value is unknown. The sentence lists those that
            there are and says which is nearest.
    """
    name, given, weights = split(text, what or kind or "method")
    found = find(name, domain, kind, what)
    settings = {key: found.setting(key).read(value, f"{found.kind} {name!r}: {key}") for key, value in given.items()}
    if missing := [one.name for one in found.settings if one.required and one.name not in settings]:
        form = ",".join(f"{one.name}=..." for one in found.settings if one.required)
        raise ValueError(
            f"{what or found.kind}: expected {name}:{form}, got {text!r}; name {' and '.join(missing)} too"
        )
    return MethodCall(found, settings, weights)
