"""`mmspec methods`: what can be asked for by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import print_table, refusing, save_json, say

if TYPE_CHECKING:
    from mmspec.methods import MethodInfo

_WORDS = {"vlm": "text", "image": "images", "continuous": "continuous images", "video": "videos"}


@command()
def methods(
    name: str | None = None, *, domain: str | None = None, kind: str | None = None, exact: bool | None = None,
    json: Path | None = None,
) -> None:  # fmt: skip
    """List the methods, or show one: what it is, its paper, its settings and an example.

    Args:
        name: A method, to see its settings; all of them when left out.
        domain: vlm, image, continuous or video.
        kind: drafter, decoding, rule, router, controller or schedule.
        exact (--exact/--relaxed): Those that keep the model's distribution.
    """
    from mmspec import methods as registry
    from mmspec.methods.registry import DOMAINS, KINDS
    from mmspec.methods.settings import nearest

    with refusing():
        for option, value, known in (("--domain", domain, DOMAINS), ("--kind", kind, KINDS)):
            if value is not None and value not in known:
                raise ValueError(f"{option}: expected one of {', '.join(known)}, got {value!r}{nearest(value, known)}")
        found = [one for one in registry.methods(domain, kind, exact) if name in (None, one.name, *one.aliases)]
        if name is not None and not found:
            known = registry.names(domain, kind, exact)
            raise ValueError(f"NAME: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    if name is None:
        _list(found)
    else:
        for one in found:
            _show(one)
    save_json(json, {"methods": [one.record() for one in found]})


def _list(found: list[MethodInfo]) -> None:
    for kind in dict.fromkeys(one.kind for one in found):
        rows = [(one.name, _homes(one), law(one), one.about) for one in found if one.kind == kind]
        print_table(f"{kind}s", ("name", "for", "output", "what it does"), rows)
    say("mmspec methods NAME shows the settings of one")


def law(one: MethodInfo) -> str:
    """What becomes of the target's distribution, in a word."""
    return "exact" if one.exact else "relaxed"


def _homes(one: MethodInfo) -> str:
    return ", ".join(_WORDS[domain] for domain in one.domains)


def _show(one: MethodInfo) -> None:
    say(f"{one.name}: {one.title}, a {one.kind} for {_homes(one)}; {law(one)}\n  {one.about}")
    if one.paper:
        say(f"  paper: {one.paper}")
    if one.needs:
        say(f"  needs: {', '.join(one.needs)}")
    if one.settings:
        rows = [(setting.name, setting.expected, "-" if setting.required else setting.written(setting.default), setting.about)
                for setting in one.settings]  # fmt: skip
        print_table("", ("setting", "takes", "default", "what it does"), rows)
    say(f"  example: {example(one)}")
    from mmspec.evaluate.registry import benches_of

    for domain, suites in benches_of(one).items():
        say(f"  measured by: mmspec bench {domain} --suite {' or '.join(suites)}")


def example(one: MethodInfo) -> str:
    """A text that asks for it, with its first setting."""
    shown: Any = next(iter(one.settings), None)
    if shown is None:
        return one.name
    value = shown.written(shown.default) if shown.default is not None else shown.choices[0] if shown.choices else "1"
    return f"{one.name}:{shown.name}={value}"
