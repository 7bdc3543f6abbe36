"""What several commands ask and check: names of methods, ranges, lists, and the model that `--model` names."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, quiet_transformers, refusing, spinner
from mmspec.methods import Domain, Kind, methods, names

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.resources import VlmResources

FILTER_ORDERS = ("top_k_first", "top_p_first")
PIPELINE = "a folder with a saved pipeline"


def listed(domain: Domain, *kinds: Kind, models: str | None = None) -> str:
    """The names of methods for a help text: exact ones, then relaxed ones. Only the first kind brings its exact ones."""
    exact = names(domain, kinds[0], exact=True, models=models)
    relaxed = dict.fromkeys(name for kind in kinds for name in names(domain, kind, exact=False, models=models))
    return ", ".join(exact) + ("; relaxed: " if exact and relaxed else "") + ", ".join(relaxed)


def judged(domain: Domain) -> str:
    """The names of the decodings whose drafts relaxed rules judge, for a help text."""
    *most, last = (one.name for one in methods(domain, "decoding") if one.facts.get("judged"))
    return f"{', '.join(most)} or {last}"


def forms(domain: Domain, kind: Kind) -> str:
    """The text forms of methods for a help text, with the settings that have no default: "strided:budget=..."."""
    shown = []
    for one in methods(domain, kind):
        needed = ",".join(f"{setting.name}=..." for setting in one.settings if setting.required)
        shown.append(one.name + (f":{needed}" if needed else ""))
    return " ".join(shown)


def check_range(least: float, most: float = float("inf"), /, **values: float | None) -> None:
    """Refuses options below `least` or above `most`, NaN and infinities; None passes."""
    for name, value in values.items():
        if value is not None and (not least <= value <= most or value == float("inf")):  # NaN is in no range
            wanted = f"at most {most:g}" if value > most else f"at least {least}"
            raise BadOption(f"{flag_of(name)}: expected a number of {wanted}, got {value}, change it")


def check_choice(known: Iterable[str], **values: str | None) -> None:
    """Refuses options that are none of the known values; None passes."""
    for name, value in values.items():
        if value is not None and value not in (known := tuple(known)):
            raise BadOption(f"{flag_of(name)}: expected one of {', '.join(known)}, got {value!r}, choose one")


def check_filters(top_p: float | None, filter_order: str | None) -> None:
    """Refuses settings of token filters that are out of range; None passes."""
    if top_p is not None and not 0 < top_p <= 1:
        raise BadOption(f"--top-p: expected a number above 0 and up to 1, got {top_p}, change it")
    check_choice(FILTER_ORDERS, filter_order=filter_order)


def check_left_out(options: Mapping[str, Any], expected: str) -> None:
    """Refuses the first option that is not None. `expected` says what takes it; {value} in it stands for the value."""
    for name, value in options.items():
        if value is not None:
            flag = flag_of(name)
            raise BadOption(f"{flag}: expected {expected.replace('{value}', repr(value))}, leave {flag} out")


def rule_of(figures: Mapping[str, Any]) -> str:
    """The rule of a request for the screen; relaxed rules say so in their name."""
    return f"{figures['rule']} (exact)" if figures["exact"] else figures["rule"]


def drawn_seed(seed: int | None) -> int:
    """The seed, or a new one where there is none."""
    return secrets.randbelow(1 << 31) if seed is None else seed


def flag_of(name: str) -> str:
    """The flag of an option, from the name of its argument."""
    return f"--{name.replace('_', '-')}"


def check_drafter(name: str | None) -> str | None:
    """The short name of a drafter, or a folder; None of None.   Refuses what is neither."""
    if name is None:
        return None
    from mmspec.evaluate.vlm.resources import drafter_names, short_name, unknown_drafter

    short = short_name(name)
    if short not in drafter_names() and not Path(name).is_dir():
        raise BadOption(unknown_drafter(name))
    return short


def split_names(name: str, text: str | None) -> tuple[str, ...] | None:
    """The names of a comma-separated option; None of None."""
    if text is None:
        return None
    found = tuple(text.split(","))
    if not all(found):
        raise BadOption(f"{name}: expected names separated by commas, got an empty one in {text!r}, take it out")
    return found


def split_numbers(name: str, text: str | None, kind: type) -> tuple | None:
    """The values of a comma-separated option; None of None."""
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise BadOption(f"{name}: expected numbers separated by commas, got {text!r}, write for example 1,4") from error


def split_pairs(
    flag: str, texts: Iterable[str] | None, form: str, advice: str, is_right: Callable[[str, str], bool] | None = None
) -> list[tuple[str, str]]:
    """The names and values of NAME=VALUE texts.

    Args:
        flag: The option, for errors.
        texts: Its values, None where it is left out.
        form: The form that is expected.
        advice: The end of an error.
        is_right: Whether a name and a value are right; None where all are.

    Raises:
        BadOption: A text has another form or is not right.
    """
    pairs = []
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value or (is_right is not None and not is_right(name, value)):
            raise BadOption(f"{flag}: expected {form}, got {text!r}, {advice}")
        pairs.append((name, value))
    return pairs


def named_paths(flag: str, texts: Iterable[str] | None) -> list[tuple[str, Path]]:
    """The names and existing paths of NAME=PATH values."""
    form = "NAME=PATH with a path that exists"
    pairs = split_pairs(flag, texts, form, "correct it", lambda _, path: Path(path).exists())
    return [(name, Path(path)) for name, path in pairs]


ZOO = "zoo"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def open_resources(spec: str, option: str = "--model") -> VlmResources:
    """The model called `spec` with its processor: of the zoo, in a folder, or of a hub id, which alone uses the network.
    option: whose value it is, for errors.

    Raises BadOption when there is no such model, or it is none that takes pictures and text.
    """
    with spinner("loading the model"):
        quiet_transformers()
        from mmspec.evaluate.vlm.resources import zoo_resources

        if spec == ZOO:
            return zoo_resources()
        if not is_of_zoo(spec):
            return _published(spec, option)
        with refusing():
            return zoo_resources(spec)


def is_of_zoo(spec: str) -> bool:
    """Whether a model of the zoo is called `spec`."""
    if spec == ZOO:
        return True
    from mmspec.evaluate.vlm.resources import TARGETS

    return spec in TARGETS


@contextmanager
def refuse_unreadable(spec: str, what: str, option: str = "--model") -> Iterator[None]:
    """Makes whatever is raised over the files of `spec` a BadOption that names the option. what: expected there."""
    try:
        yield
    except Exception as error:  # no end to what readers raise over a config or weights of another shape
        if str(error).startswith(f"{option}: "):
            raise BadOption(str(error)) from error
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        raise BadOption(f"{option}: expected {what}, got {spec!r} ({kind}{error}), check it") from error


def _published(spec: str, option: str) -> VlmResources:
    from mmspec.evaluate.vlm.resources import published_resources

    local = Path(spec).is_dir()
    if not local and not _HUB_ID.fullmatch(spec):
        raise BadOption(f"{option}: expected 'zoo', a folder or a hub id 'owner/name', got {spec!r}, correct it")
    with refuse_unreadable(spec, "a safetensors model that takes pictures and text", option):
        return published_resources(spec, local)
