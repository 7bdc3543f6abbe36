"""`mmspec methods`: the drafters, decodings, rules and routers that options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import refusing, save_json, say
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next

if TYPE_CHECKING:
    from mmspec.methods import MethodInfo

_WORDS = {"vlm": "text", "image": "images", "continuous": "continuous images", "video": "videos"}


@command()
def methods(
    name: str | None = None,
    *,
    domain: str | None = None,
    kind: str | None = None,
    exact: bool | None = None,
    json: Path | None = None,
) -> None:
    """List the drafters, decodings, rules and routers, or show a method with its paper, its settings and an example.

    Args:
        name (NAME): Method to show with its settings; all methods when left out.
        domain (NAME): List the methods for vlm, image, continuous or video.
        kind (NAME): List the methods of a kind: drafter, decoding, rule, router, controller, schedule or shape.
        exact (--exact/--relaxed): List the methods that keep the model's distribution, or those that do not.

    Examples:
        mmspec methods --domain image
        mmspec methods --kind drafter --exact
        mmspec methods scd
    """
    from mmspec import methods as registry
    from mmspec.methods.registry import DOMAINS, KINDS
    from mmspec.methods.settings import nearest

    with refusing():
        for option, value, known in (("--domain", domain, DOMAINS), ("--kind", kind, KINDS)):
            if value is not None and value not in known:
                raise ValueError(f"{option}: expected one of {', '.join(known)}, got {value!r}{nearest(value, known)}")
        known = registry.methods(domain, kind, exact)
        selected = [method for method in known if name in (None, method.name, *method.aliases)]
        if name is not None and not selected:
            known = registry.names(domain, kind, exact)
            raise ValueError(f"NAME: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    if name is None:
        _list(selected)
    else:
        for method in selected:
            _show(method)
    save_json(json, {"methods": [method.record() for method in selected]})
    say_next("mmspec methods NAME" if name is None else "mmspec methods")


def _list(listed: list[MethodInfo]) -> None:
    for kind in dict.fromkeys(method.kind for method in listed):
        rows = [(method.name, _homes(method), law(method), method.about) for method in listed if method.kind == kind]
        print_table(f"{kind}s", ("name", "for", "output", "what it does"), rows)
    say("`mmspec methods NAME` shows the settings of a method.")


def law(method: MethodInfo) -> str:
    return "exact" if method.exact else "relaxed"


def _homes(method: MethodInfo) -> str:
    return ", ".join(_WORDS[domain] for domain in method.domains)


def _show(method: MethodInfo) -> None:
    say(f"{method.name}: {method.title}, a {method.kind} for {_homes(method)}; {law(method)}\n  {method.about}")
    if method.paper:
        say(f"  paper: {method.paper}")
    if method.needs:
        say(f"  needs: {', '.join(method.needs)}")
    if method.settings:
        rows = [
            (
                setting.name,
                setting.expected,
                "-" if setting.required else setting.written(setting.default),
                setting.about,
            )
            for setting in method.settings
        ]
        print_table("", ("setting", "takes", "default", "what it does"), rows)
    say(f"  example: {example(method)}")
    from mmspec.evaluate.engine.registry import benches_of

    for domain, suites in benches_of(method).items():
        say(f"  measured by: mmspec bench {domain} --suite {' or '.join(suites)}")


def example(method: MethodInfo) -> str:
    """Return the text that names a method with its first setting."""
    setting: Any = next(iter(method.settings), None)
    if setting is None:
        return method.name
    if setting.default is not None:
        value = setting.written(setting.default)
    else:
        value = setting.choices[0] if setting.choices else "1"
    return f"{method.name}:{setting.name}={value}"
