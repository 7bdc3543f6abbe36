"""What can be asked for by name: each method is described once, beside its class."""

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
Kind = Literal["drafter", "decoding", "rule", "router", "controller", "schedule"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)
KINDS: tuple[Kind, ...] = get_args(Kind)
INDEX = "index.json"


class MethodParts(Protocol):
    """What a method is made of beside its settings."""

    @property
    def model(self) -> Any:
        """The target."""

    def part(self, name: str, source: str | None = None) -> Any:
        """Weights or another object that the method names in `needs`.

        Args:
            name: The name of the part.
            source: Where it is saved, from a setting of the method; None for the weights that the text names behind @, or
                for what belongs to the model.

        Raises:
            ValueError: The part is not at hand.
        """


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A target without further parts.

    Attributes:
        target: The target, None where there is none.
    """

    target: Any = None

    @property
    def model(self) -> Any:
        """The target.   Raises ValueError where there is none."""
        if self.target is None:
            raise ValueError(
                "method: expected its model at hand, since it reads its codes, got none; name it in a request"
            )
        return self.target

    def part(self, name: str, source: str | None = None) -> Any:
        """Raises ValueError: there are no parts."""
        raise ValueError(f"method: expected {name!r} at hand, got none; name its weights behind @")


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """The description of a method.

    Attributes:
        name: What users write.
        domains: Where it is at home.
        kind: What it takes the place of.
        title: What tables and figures call it.
        exact: Whether the output keeps the target's distribution whatever the settings are.
        about: What it does, in a line.
        home: Module and name of its class, "module:Name".
        paper: The title of the paper.
        needs: Parts that have to be at hand: trained weights, a reward, a smaller model.
        settings: What can be set.
        aliases: Other names that it is found by.
        facts: More that views of its kind read, such as the rule that a decoding takes by itself.
    """

    name: str
    domains: tuple[Domain, ...]
    kind: Kind
    title: str
    exact: bool
    about: str
    home: str
    paper: str = ""
    needs: tuple[str, ...] = ()
    settings: tuple[MethodSetting, ...] = ()
    aliases: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, name: str) -> MethodSetting:
        """The setting of this name.   Raises ValueError for another name."""
        found = next((one for one in self.settings if one.name == name), None)
        if found is None:
            known = tuple(one.name for one in self.settings)
            takes = f"a setting of {self.name} ({', '.join(known)})" if known else f"no settings of {self.name}"
            raise ValueError(f"{self.kind} {self.name!r}: expected {takes}, got {name!r}{nearest(name, known)}")
        return found

    def load(self) -> Callable[..., Any]:
        """Its class; imports the module."""
        module, _, name = self.home.partition(":")
        return getattr(import_module(module), name)

    def make(self, settings: Mapping[str, Scalar], parts: MethodParts | None = None) -> Any:
        """The method with these settings.

        Args:
            settings: Values by name; the others keep their defaults.
            parts: The target and what the method needs; None where it needs neither.

        Raises:
            ValueError: A setting is refused by the class, or a part is not at hand.
        """
        made = self.load()
        build, given = getattr(made, "make", None), converted(made, settings)
        if build is not None:
            return build(given, parts)
        return made(**given, parts=parts) if "parts" in signature(made).parameters else made(**given)

    def record(self) -> dict[str, Any]:
        """It as JSON."""
        made = {"name": self.name, "domains": list(self.domains), "kind": self.kind, "title": self.title, "exact": self.exact,
                "about": self.about, "home": self.home, "paper": self.paper, "needs": list(self.needs),
                "settings": [one.record() for one in self.settings], "aliases": list(self.aliases),
                "facts": dict(self.facts)}  # fmt: skip
        return {name: value for name, value in made.items() if value not in ("", [], {})}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> MethodInfo:
        """The method that `record` was made of."""
        settings = tuple(map(MethodSetting.of_record, record.get("settings", ())))
        lists = {name: tuple(record.get(name, ())) for name in ("domains", "needs", "aliases")}
        facts = {name: _frozen(value) for name, value in record.get("facts", {}).items()}
        return cls(**{**record, **lists, "settings": settings, "facts": facts})


def _frozen(value: Any) -> Any:
    """The value of a fact with tuples for lists, so that it is the same from the index and from the class."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


_registered: dict[tuple[Kind, str, tuple[Domain, ...]], MethodInfo] = {}
Made = TypeVar("Made", bound=Callable[..., Any])


def method(
    name: str, *, domain: Domain | tuple[Domain, ...], kind: Kind, title: str, exact: bool, about: str, paper: str = "",
    needs: tuple[str, ...] = (), aliases: tuple[str, ...] = (), takes: Callable[..., Any] | None = None, **facts: Any,
) -> Callable[[Made], Made]:  # fmt: skip
    """Describe a class as a method, see `MethodInfo`. It can be found by name from then on.

    A class with a function `make(settings, parts)` is made by it, any other by its constructor. A function may be a method
    too; where it has an argument `parts`, it gets what `MethodParts` describes. `takes` is what settings are read off where
    that is not the constructor. What a class's `method_facts()` returns is added to the facts.
    """

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
    """The methods whose modules are imported."""
    return tuple(_registered.values())


@cache
def _indexed() -> dict[tuple[Kind, str, tuple[Domain, ...]], MethodInfo]:
    text = files(__package__).joinpath(INDEX).read_text(encoding="utf-8")
    made = map(MethodInfo.of_record, json.loads(text))
    return {(one.kind, one.name, one.domains): one for one in made}


def methods(
    domain: Domain | None = None, kind: Kind | None = None, exact: bool | None = None, models: str | None = None
) -> tuple[MethodInfo, ...]:
    """The methods of a domain, a kind, a law and a kind of models; None for all.

    Those of modules that users imported come last. A method says in its fact `models` for which kinds of models it is
    ("masked", "causal", "blocks", "codes"); without the fact it is for all of its domains.
    """
    every: Iterable[MethodInfo] = {**_indexed(), **_registered}.values()
    return tuple(
        one
        for one in every
        if (domain is None or domain in one.domains)
        and (kind is None or kind == one.kind)
        and (exact is None or exact == one.exact)
        and (models is None or models in one.facts.get("models", (models,)))
    )


def names(
    domain: Domain | None = None, kind: Kind | None = None, exact: bool | None = None, models: str | None = None
) -> tuple[str, ...]:
    """The names of `methods`, each once."""
    return tuple(dict.fromkeys(one.name for one in methods(domain, kind, exact, models)))


def decoding_with(fact: str, domain: Domain = "image", models: str = "codes") -> MethodInfo:
    """The decoding that has a fact, such as "usual": it decodes where none is named, so that a seed gives its values again."""
    return next(one for one in methods(domain, "decoding", models=models) if one.facts.get(fact))


def find(
    name: str, domain: Domain | None = None, kind: Kind | None = None, what: str = "", models: str | None = None
) -> MethodInfo:
    """The method of a name.

    Args:
        name: As users write it.
        domain: Where it is looked for, None for everywhere.
        kind: What it is, None for any.
        what: The argument or option that the name was given for, for errors; the kind by default.
        models: The kind of models that it is for, None for any; see `methods`.

    Raises:
        ValueError: There is no such method, or several.
    """
    what = what or kind or "method"
    found = [one for one in methods(domain, kind, models=models) if name in (one.name, *one.aliases)]
    if not found:
        known = names(domain, kind, models=models)
        raise ValueError(f"{what}: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    if len(found) > 1:
        places = ", ".join(f"{one.kind} of {' and '.join(one.domains)}" for one in found)
        raise ValueError(
            f"{what}: expected one method of the name {name!r}, got several ({places}); name domain and kind"
        )
    return found[0]
