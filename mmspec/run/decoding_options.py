"""Options of the command line: choices, and decodings as a text with shorthands of its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmspec.methods import Domain, MethodCall, find, methods, names, parse
from mmspec.methods.settings import nearest
from mmspec.methods.text import joined, split


def decoding_call(
    text: str,
    domain: Domain,
    models: str,  # the kind of the model, see `mmspec.methods.methods`
    options: Mapping[str, Any] | None = None,  # by the setting's name; None is an option that was left out
    purpose: str = "",  # a note on the model for errors, such as " for zoo mar"
) -> MethodCall:
    """Return the decoding of a text, `NAME[:setting=value,...][@WEIGHTS]`, and of options of the command line."""
    name, written, weights = split(text, "--decoding")
    known = names(domain, "decoding", models=models)
    if name not in known:
        raise ValueError(f"--decoding: expected one of {', '.join(known)}{purpose}, got {name!r}{nearest(name, known)}")
    takes = [setting.name for setting in find(name, domain, "decoding", models=models).settings]
    settings = {key: str(value) for key, value in (options or {}).items() if value is not None}
    refuse_options(name, settings, takes)
    return parse(joined(name, written | settings, weights), domain, "decoding", models=models)


def refuse_options(name: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Raise an error for options that a decoding does not have."""
    for option, value in options.items():
        if option not in known:
            allowed = ", ".join(f"--{entry}" for entry in known) or "none of its own"
            raise ValueError(
                f"--{option}: expected options that --decoding {name} takes ({allowed}), got {value!r}, leave it out"
            )


def check_needs(part: str, text: str, domain: Domain, models: str) -> None:
    """Check that the decoding of a text needs the part that an option names."""
    name = split(text, "--decoding")[0]
    known = methods(domain, "decoding", models=models)
    needing = [entry.name for entry in known if part in entry.needs]
    if name in (entry.name for entry in known) and name not in needing:
        raise ValueError(f"--{part}: expected --decoding {' or '.join(needing)}, got {name!r}, leave --{part} out")


PLAIN = "ar"  # plain decoding, in every sweep and in benches of drawn output


def check_choice(option: str, value: object, known: Iterable[str], purpose: str = "") -> None:
    """Check that the value of an option is among those known; `purpose` is a note on these, such as " for vectors"."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"{option}: expected one of {', '.join(known)}{purpose}, got {value!r}, pick one of these")
