"""Decodings as the command line asks for them: a text, and options that are shorthands of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split


def decoding_call(
    text: str, domain: Domain, models: str, options: Mapping[str, Any] | None = None, purpose: str = ""
) -> MethodCall:
    """The decoding that a text and options ask for.

    Args:
        text: A decoding with its settings, `NAME[:setting=value,...][@WEIGHTS]`.
        domain: Where the name is looked for.
        models: The kind of the model, see `mmspec.methods.methods`.
        options: Settings from options of the command line by name; None is an option that was left out.
        purpose: What the decodings are for, for errors, such as " for zoo mar".

    Raises:
        ValueError: A name, a setting or a value is unknown, or the decoding has no such setting.
    """
    name, written, weights = split(text, "--decoding")
    known = names(domain, "decoding", models=models)
    if name not in known:
        raise ValueError(f"--decoding: expected one of {', '.join(known)}{purpose}, got {name!r}{nearest(name, known)}")
    takes = [one.name for one in find(name, domain, "decoding", models=models).settings]
    given = {key: str(value) for key, value in (options or {}).items() if value is not None}
    refuse_options(name, given, takes)
    return parse(joined(name, written | given, weights), domain, "decoding", models=models)


def refuse_options(name: str, given: Mapping[str, Any], takes: list[str]) -> None:
    """Raises ValueError for options that a decoding does not take."""
    for option, value in given.items():
        if option not in takes:
            allowed = ", ".join(f"--{one}" for one in takes) or "none of its own"
            raise ValueError(f"--{option}: expected options that --decoding {name} takes ({allowed}), got {value!r}, leave it "
                             "out")  # fmt: skip


def check_needs(part: str, text: str, domain: Domain, models: str) -> None:
    """Raises ValueError where an option names a part that the decoding of a text does not need."""
    name = split(text, "--decoding")[0]
    known = methods(domain, "decoding", models=models)
    needing = [one.name for one in known if part in one.needs]
    if name in (one.name for one in known) and name not in needing:
        raise ValueError(f"--{part}: expected --decoding {' or '.join(needing)}, got {name!r}, leave --{part} out")
