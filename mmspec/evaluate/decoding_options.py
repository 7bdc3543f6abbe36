"""Decodings from the command line: a text, and options that are shorthands of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split


def decoding_call(
    text: str, domain: Domain, models: str, options: Mapping[str, Any] | None = None, purpose: str = ""
) -> MethodCall:
    """Return the decoding of a text and options.

    Args:
        text: A decoding with its settings, `NAME[:setting=value,...][@WEIGHTS]`.
        domain: The domain of the name.
        models: The kind of the model, see `mmspec.methods.methods`.
        options: Settings from options of the command line by name; None is an option that was left out.
        purpose: A note on the model for errors, such as " for zoo mar".

    Raises:
        ValueError: A name, a setting or a value is unknown, or the decoding has no such setting.
    """
    name, written, weights = split(text, "--decoding")
    known = names(domain, "decoding", models=models)
    if name not in known:
        raise ValueError(f"--decoding: expected one of {', '.join(known)}{purpose}, got {name!r}{nearest(name, known)}")
    takes = [one.name for one in find(name, domain, "decoding", models=models).settings]
    settings = {key: str(value) for key, value in (options or {}).items() if value is not None}
    refuse_options(name, settings, takes)
    return parse(joined(name, written | settings, weights), domain, "decoding", models=models)


def refuse_options(name: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Refuse options that a decoding does not have.

    Raises:
        ValueError: There is such an option.
    """
    for option, value in options.items():
        if option not in known:
            allowed = ", ".join(f"--{one}" for one in known) or "none of its own"
            raise ValueError(f"--{option}: expected options that --decoding {name} takes ({allowed}), got {value!r}, leave it "
                             "out")  # fmt: skip


def check_needs(part: str, text: str, domain: Domain, models: str) -> None:
    """Check that the decoding of a text needs the part that an option names.

    Raises:
        ValueError: It does not.
    """
    name = split(text, "--decoding")[0]
    known = methods(domain, "decoding", models=models)
    needing = [one.name for one in known if part in one.needs]
    if name in (one.name for one in known) and name not in needing:
        raise ValueError(f"--{part}: expected --decoding {' or '.join(needing)}, got {name!r}, leave --{part} out")
