"""Options that several commands share: names of methods, ranges, lists, and the model of `--model`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, quiet_transformers, refusing, spinner
from mmspec.methods import Domain, Kind, methods, names
from mmspec.zoo.files.table import MODELS

if TYPE_CHECKING:
    from mmspec.run.placement import Placement
    from mmspec.run.vlm_models import VlmResources

FILTER_ORDERS = ("top_k_first", "top_p_first")
PIPELINE = "a folder with a saved pipeline"


def listed(domain: Domain, *kinds: Kind, models: str | None = None) -> str:
    """Return the names of methods for a help text: exact methods of the first kind, then relaxed methods of all kinds.
    `models` is the kind of model that they decode with, None for any."""
    exact = names(domain, kinds[0], exact=True, models=models)
    relaxed = dict.fromkeys(name for kind in kinds for name in names(domain, kind, exact=False, models=models))
    return ", ".join(exact) + ("; relaxed: " if exact and relaxed else "") + ", ".join(relaxed)


def judged(domain: Domain) -> str:
    """Return the names of the decodings whose drafts relaxed rules can judge, for a help text."""
    *most, last = (method.name for method in methods(domain, "decoding") if method.facts.get("judged"))
    return f"{', '.join(most)} or {last}"


def forms(domain: Domain, kind: Kind) -> str:
    """Return the text forms of methods for a help text, with required settings: "strided:budget=..."."""
    shown = []
    for method in methods(domain, kind):
        needed = ",".join(f"{setting.name}=..." for setting in method.settings if setting.required)
        shown.append(method.name + (f":{needed}" if needed else ""))
    return " ".join(shown)


def check_range(least: float, most: float = float("inf"), /, **values: float | None) -> None:
    """Refuse options outside the range, NaN and infinities; None passes."""
    for name, value in values.items():
        if value is not None and (not least <= value <= most or value == float("inf")):  # NaN is in no range
            wanted = f"at most {most:g}" if value > most else f"at least {least}"
            raise BadOption(f"{flag_of(name)}: expected a number of {wanted}, got {value}, change it")


def check_choice(known: Iterable[str], **values: str | None) -> None:
    """Refuse unknown values; None passes."""
    for name, value in values.items():
        if value is not None and value not in (known := tuple(known)):
            raise BadOption(f"{flag_of(name)}: expected one of {', '.join(known)}, got {value!r}, choose one")


def placement_of(device: str, dtype: str = "auto") -> Placement:
    from mmspec.run import placement

    with refusing():
        return placement.placement_of(device, dtype)


def check_filters(top_p: float | None, filter_order: str | None) -> None:
    if top_p is not None and not 0 < top_p <= 1:
        raise BadOption(f"--top-p: expected a number above 0 and up to 1, got {top_p}, change it")
    check_choice(FILTER_ORDERS, filter_order=filter_order)


def check_left_out(options: Mapping[str, Any], expected: str) -> None:
    """Refuse the first option that is not None. `expected`, for the error, is the model or option that the options
    belong to; {value} in it stands for the value."""
    for name, value in options.items():
        if value is not None:
            flag = flag_of(name)
            raise BadOption(f"{flag}: expected {expected.replace('{value}', repr(value))}, leave {flag} out")


def rule_of(figures: Mapping[str, Any]) -> str:
    """Return the rule of a request for the screen; the names of relaxed rules end with "(relaxed)"."""
    return f"{figures['rule']} (exact)" if figures["exact"] else figures["rule"]


def drafted_by(figures: Mapping[str, Any]) -> str:
    """Return the drafter of a request with its rule for the screen; the exact rule is not named twice."""
    if figures["rule"] == "exact":
        return f"{figures['drafter']} (exact)"
    return f"{figures['drafter']}, rule {rule_of(figures)}"


def drawn_seed(seed: int | None) -> int:
    return secrets.randbelow(1 << 31) if seed is None else seed


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_drafter(name: str | None) -> str | None:
    """Return a drafter's short name, the folder that holds it, or a text such as eagle@FOLDER; None for None."""
    if name is None or "@" in name:
        return name
    from mmspec.run.vlm_models import drafter_names, short_name, unknown_drafter

    short = short_name(name)
    if short not in drafter_names() and not Path(name).is_dir():
        raise BadOption(unknown_drafter(name))
    return short


def split_names(name: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    parts = tuple(text.split(","))
    if not all(parts):
        raise BadOption(f"{name}: expected names separated by commas, got an empty one in {text!r}, take it out")
    return parts


def split_numbers(name: str, text: str | None, kind: type) -> tuple | None:
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise BadOption(f"{name}: expected numbers separated by commas, got {text!r}, write for example 1,4") from error


def split_pairs(
    flag: str, texts: Iterable[str] | None, form: str, advice: str, is_right: Callable[[str, str], bool] | None = None
) -> list[tuple[str, str]]:
    """Return the names and values of NAME=VALUE texts. `form` is the expected form and `advice` the end of an error.
    `is_right` says whether a name and a value are right; None where all are."""
    pairs = []
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value or (is_right is not None and not is_right(name, value)):
            raise BadOption(f"{flag}: expected {form}, got {text!r}, {advice}")
        pairs.append((name, value))
    return pairs


def named_paths(flag: str, texts: Iterable[str] | None) -> list[tuple[str, Path]]:
    """Return the names and the existing paths of NAME=PATH values."""
    form = "NAME=PATH with a path that exists"
    pairs = split_pairs(flag, texts, form, "correct it", lambda _, path: Path(path).exists())
    return [(name, Path(path)) for name, path in pairs]


ZOO = "zoo"
_UNREACHED = ("couldn't connect to", "Cannot find the requested files in the disk cache")  # of huggingface_hub
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def open_resources(spec: str, option: str = "--model", dtype: str = "auto") -> VlmResources:
    """Load "zoo", another model of the zoo, a folder, or a hub id, which alone uses the network. `dtype` "auto" is
    float32 for the zoo's models, and else that of the files."""
    with spinner("loading the model"):
        quiet_transformers()
        from mmspec.run.vlm_models import zoo_resources

        precision = {} if dtype == "auto" else {"dtype": dtype}
        if spec == ZOO:
            return zoo_resources(**precision)
        if not is_of_zoo(spec):
            return _published(spec, option, precision)
        with refusing():
            return zoo_resources(spec, **precision)


def recommended_drafter(resources: VlmResources) -> str | None:
    """Return the drafter that the zoo recommends for a model of its own, or None. A fixed drafter is fast from the
    first request on, while `auto` first has to measure the cost of its drafts."""
    from mmspec import zoo
    from mmspec.run.vlm_models import short_name

    name = MODELS[resources.zoo].auto if resources.zoo in MODELS else ""
    return short_name(name) if name in zoo.names() else None


def is_of_zoo(spec: str) -> bool:
    if spec == ZOO:
        return True
    from mmspec.run.vlm_models import TARGETS

    return spec in TARGETS


@contextmanager
def refuse_unreadable(spec: str, expected: str, option: str = "--model") -> Iterator[None]:
    """Turn every error over a model's files into a usage error with the option and the `expected` kind of model."""
    try:
        yield
    except Exception as error:  # readers raise errors of any class over a config or weights of another shape
        if str(error).startswith(f"{option}: "):
            raise BadOption(str(error)) from error
        if any(sign in str(error) for sign in _UNREACHED):
            raise BadOption(
                f"{option}: expected {expected}, got {spec!r}, which is not in the Hugging Face cache while the hub cannot be "
                "reached; check the network, or name a folder"
            ) from error
        kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
        raise BadOption(f"{option}: expected {expected}, got {spec!r} ({kind}{error}), check it") from error


def _published(spec: str, option: str, precision: dict[str, str]) -> VlmResources:
    from mmspec.run.vlm_models import published_resources

    local = Path(spec).is_dir()
    if not local and spec in MODELS:
        raise BadOption(f"{option}: expected a model that writes text, got the zoo's {spec!r}, which is none; use zoo")
    if not local and not HUB_ID.fullmatch(spec):
        raise BadOption(f"{option}: expected 'zoo', a folder or a hub id 'owner/name', got {spec!r}, correct it")
    with refuse_unreadable(spec, "a safetensors model that takes pictures and text", option):
        return published_resources(spec, local, **precision)
