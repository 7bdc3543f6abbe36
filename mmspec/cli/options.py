"""Options that several commands have, and the model that `--model` names."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, quiet_transformers, refusing, spinner
from mmspec.io.validation import LARGEST_SCALE
from mmspec.methods import Domain, Kind, methods, names

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.resources import VlmResources

FILTER_ORDERS = ("top_k_first", "top_p_first")
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to this file.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a Markdown page to this file.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the curves as PNG (needs mmspec\\[eval]).")]
Drafter = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="auto, eagle, msd, vispec or another of `mmspec supported`, vlm/eagle... being the same; small, lookup, "
        "recycling, none, or a folder with a saved drafter.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", metavar="N", help="Longest answer in tokens.")]


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


def check_at_least(name: str, value: float, least: float, most: float = float("inf")) -> None:
    """Refuses a value below `least` or above `most`, NaN and infinities."""
    if not least <= value <= most or value == float("inf"):  # NaN is in no range
        wanted = f"at most {most:g}" if value > most else f"at least {least}"
        raise BadOption(f"{name}: expected a number of {wanted}, got {value}, change it")


def check_scale(name: str, value: float | None) -> None:
    """Refuses a scale of guidance or noise that overflows in the first pass; None passes."""
    if value is not None:
        check_at_least(name, value, 0, LARGEST_SCALE)


def check_filters(top_p: float | None, filter_order: str | None) -> None:
    """Refuses settings of token filters that are out of range; None passes."""
    if top_p is not None and not 0 < top_p <= 1:
        raise BadOption(f"--top-p: expected a number above 0 and up to 1, got {top_p}, change it")
    if filter_order not in (None, *FILTER_ORDERS):
        known = ", ".join(FILTER_ORDERS)
        raise BadOption(f"--filter-order: expected one of {known}, got {filter_order!r}, pick one of these")


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


def named_paths(name: str, values: Iterable[str] | None) -> list[tuple[str, Path]]:
    """The names and existing paths of NAME=PATH values."""
    found = []
    for value in values or ():
        title, _, path = value.partition("=")
        if not title or not path or not Path(path).exists():
            raise BadOption(f"{name}: expected NAME=PATH with a path that exists, got {value!r}, correct it")
        found.append((title, Path(path)))
    return found


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
