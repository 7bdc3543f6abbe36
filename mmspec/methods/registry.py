"""The registry of methods: each method is described once, beside its class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from inspect import signature
from typing import Any, Literal, Protocol, TypeVar, get_args

from mmspec.methods.settings import MethodSetting, Scalar, converted, nearest, settings_of

Domain = Literal["vlm", "image", "continuous", "video"]
Kind = Literal["drafter", "decoding", "rule", "router", "controller", "schedule", "shape"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)
KINDS: tuple[Kind, ...] = get_args(Kind)
INDEX = "index.json"


class MethodParts(Protocol):
    """The model and the other parts that a method is constructed from, beside its settings."""

    @property
    def model(self) -> Any:
        """The target."""

    def part(self, name: str, source: str | None = None) -> Any:
        """Return weights or another object that the method names in `needs`. `source` is where it is saved, from a
        setting of the method; None for the weights behind @ in the text, or for a part that belongs to the model."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A target without further parts."""

    target: Any = None

    @property
    def model(self) -> Any:
        if self.target is None:
            raise ValueError(
                "method: expected a model, whose codes the method reads, got none; name the model in the request"
            )
        return self.target

    def part(self, name: str, source: str | None = None) -> Any:
        raise ValueError(f"method: expected the part {name!r}, got none; name its weights behind @")


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """The description of a method; `facts` are values that views of its kind read, such as a decoding's default rule."""

    name: str  # that users write
    domains: tuple[Domain, ...]
    kind: Kind
    title: str  # name in tables and figures
    exact: bool  # the output keeps the target's distribution for all settings
    about: str  # a line
    home: str  # of its class, "module:Name"
    paper: str = ""  # its title
    needs: tuple[str, ...] = ()  # required parts: trained weights, a reward, a smaller model
    settings: tuple[MethodSetting, ...] = ()
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, name: str) -> MethodSetting:
        setting = next((known for known in self.settings if known.name == name), None)
        if setting is None:
            known = tuple(setting.name for setting in self.settings)
            takes = f"a setting of {self.name} ({', '.join(known)})" if known else f"no settings of {self.name}"
            raise ValueError(f"{self.kind} {self.name!r}: expected {takes}, got {name!r}{nearest(name, known)}")
        return setting

    def load(self) -> Callable[..., Any]:
        """Import the module and return the class of the method."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)

    def make(self, settings: Mapping[str, Scalar], parts: MethodParts | None = None) -> Any:
        """Construct the method, with defaults for other settings; `parts` None where it needs neither target nor parts."""
        factory = self.load()
        build, values = getattr(factory, "make", None), converted(factory, settings)
        if build is not None:
            return build(values, parts)
        return factory(**values, parts=parts) if "parts" in signature(factory).parameters else factory(**values)

    def record(self) -> dict[str, Any]:
        """Return the description as a JSON object without empty fields."""
        fields = {
            "name": self.name,
            "domains": list(self.domains),
            "kind": self.kind,
            "title": self.title,
            "exact": self.exact,
            "about": self.about,
            "home": self.home,
            "paper": self.paper,
            "needs": list(self.needs),
            "settings": [setting.record() for setting in self.settings],
            "aliases": list(self.aliases),
            "facts": dict(self.facts),
        }
        return {name: value for name, value in fields.items() if value not in ("", [], {})}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> MethodInfo:
        settings = tuple(map(MethodSetting.of_record, record.get("settings", ())))
        lists = {name: tuple(record.get(name, ())) for name in ("domains", "needs", "aliases")}
        facts = {name: _frozen(value) for name, value in record.get("facts", {}).items()}
        return cls(**{**record, **lists, "settings": settings, "facts": facts})


def _frozen(value: Any) -> Any:
    """Replace lists by tuples, so that facts from the index equal those from the class."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


_registered: dict[tuple[Kind, str, tuple[Domain, ...]], MethodInfo] = {}
Made = TypeVar("Made", bound=Callable[..., Any])


def method(
    name: str,
    *,
    domain: Domain | tuple[Domain, ...],
    kind: Kind,
    title: str,
    exact: bool,
    about: str,
    paper: str = "",
    needs: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    takes: Callable[..., Any] | None = None,
    **facts: Any,
) -> Callable[[Made], Made]:
    """Return a decorator that registers a class as a method; see `MethodInfo` for the arguments. `takes` is the
    callable whose arguments are the settings, where this is not the constructor.

    A class with a function `make(settings, parts)` is constructed by it, any other class by its constructor. A function
    may be a method too; if it has an argument `parts`, it receives a `MethodParts`. The dict that a class returns from
    `method_facts()` is added to the facts."""

    def describe(made: Made) -> Made:
        domains = (domain,) if isinstance(domain, str) else tuple(domain)
        home = f"{made.__module__}:{made.__qualname__}"
        known, own = settings_of(takes or made), getattr(made, "method_facts", dict)()
        more = {key: _frozen(value) for key, value in {**own, **facts}.items()}
        described = MethodInfo(
            name, domains, kind, title, exact, about, home, paper, tuple(needs), known, tuple(aliases), more
        )
        _registered[kind, name, domains] = described
        return made

    return describe


def registered() -> tuple[MethodInfo, ...]:
    """Return the methods whose modules are imported."""
    return tuple(_registered.values())


@cache
def _indexed() -> dict[tuple[Kind, str, tuple[Domain, ...]], MethodInfo]:
    text = files(__package__).joinpath(INDEX).read_text(encoding="utf-8")
    indexed = map(MethodInfo.of_record, json.loads(text))
    return {(info.kind, info.name, info.domains): info for info in indexed}


def methods(
    domain: Domain | None = None, kind: Kind | None = None, exact: bool | None = None, models: str | None = None
) -> tuple[MethodInfo, ...]:
    """Return the methods of a domain, a kind, an exactness and a kind of models, None for all; user modules come last.
    `models` is "masked", "causal", "blocks" or "codes". A method supports those in its fact `models`, else all."""
    for option, value, known in (("domain", domain, DOMAINS), ("kind", kind, KINDS)):
        if value is not None and value not in known:
            raise ValueError(f"{option}: expected one of {', '.join(known)}, got {value!r:.60}; pick one of these")
    every: Iterable[MethodInfo] = {**_indexed(), **_registered}.values()
    return tuple(
        info
        for info in every
        if (domain is None or domain in info.domains)
        and (kind is None or kind == info.kind)
        and (exact is None or exact == info.exact)
        and (models is None or models in info.facts.get("models", (models,)))
    )


def names(
    domain: Domain | None = None, kind: Kind | None = None, exact: bool | None = None, models: str | None = None
) -> tuple[str, ...]:
    """Return the names of `methods` without repetitions."""
    return tuple(dict.fromkeys(info.name for info in methods(domain, kind, exact, models)))


def decoding_with(fact: str, domain: Domain = "image", models: str = "codes") -> MethodInfo:
    """Return the decoding that has a fact, such as "usual" for the default decoding."""
    return next(info for info in methods(domain, "decoding", models=models) if info.facts.get(fact))


def find(
    name: str, domain: Domain | None = None, kind: Kind | None = None, option: str = "", models: str | None = None
) -> MethodInfo:
    """Return the method of a name or an alias. `option`, for errors, is the argument or option that contains the name,
    the kind by default; for the others see `methods`."""
    option = option or kind or "method"
    if not isinstance(name, str):
        raise ValueError(f"{option}: expected the name of a method, got {name!r:.60}; write the name")
    matches = [info for info in methods(domain, kind, models=models) if name in (info.name, *info.aliases)]
    if not matches:
        known = names(domain, kind, models=models)
        raise ValueError(f"{option}: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    if len(matches) > 1:
        places = ", ".join(f"{info.kind} of {' and '.join(info.domains)}" for info in matches)
        raise ValueError(
            f"{option}: expected one method of the name {name!r}, got several ({places}); name domain and kind"
        )
    return matches[0]
