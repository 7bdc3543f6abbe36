"""`mmspec methods`: what can be asked for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.console import refusing, reports_errors, save_json, screen
from mmspec.cli.options import Json

if TYPE_CHECKING:
    from mmspec.methods import MethodInfo

_WORDS = {"vlm": "text", "image": "images", "continuous": "continuous images", "video": "videos"}


@reports_errors
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to see its settings; all of them when left out.")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="vlm, image, continuous or video.")] = None,
    kind: Annotated[str | None, typer.Option(help="drafter, decoding, rule, router, controller or schedule.")] = None,
    exact: Annotated[
        bool | None, typer.Option("--exact/--relaxed", help="Those that keep the model's distribution.")
    ] = None,
    json: Json = None,
) -> None:
    """List the methods, or show one: what it is, its paper, its settings and an example."""
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
    from rich.table import Table

    console = screen()
    for kind in dict.fromkeys(one.kind for one in found):
        table = Table(title=f"{kind}s", title_justify="left")
        for head in ("name", "for", "output", "what it does"):
            table.add_column(head, overflow="fold")
        for one in (one for one in found if one.kind == kind):
            table.add_row(one.name, ", ".join(_WORDS[domain] for domain in one.domains), law(one), one.about)
        console.print(table)
    console.print("mmspec methods NAME shows the settings of one", soft_wrap=True)


def law(one: MethodInfo) -> str:
    """What becomes of the target's distribution, in a word."""
    return "exact" if one.exact else "relaxed"


def _show(one: MethodInfo) -> None:
    from rich.table import Table

    console = screen()

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    line(f"{one.name}: {one.title}, a {one.kind} for {', '.join(_WORDS[domain] for domain in one.domains)}; {law(one)}")
    line(f"  {one.about}")
    if one.paper:
        line(f"  paper: {one.paper}")
    if one.needs:
        line(f"  needs: {', '.join(one.needs)}")
    if one.settings:
        table = Table()
        for head in ("setting", "takes", "default", "what it does"):
            table.add_column(head, overflow="fold")
        for setting in one.settings:
            default = "-" if setting.required else setting.written(setting.default)
            table.add_row(setting.name, setting.expected, default, setting.about)
        console.print(table)
    line(f"  example: {example(one)}")
    from mmspec.evaluate.registry import benches_of

    for domain, suites in benches_of(one).items():
        line(f"  measured by: mmspec bench {domain} --suite {' or '.join(suites)}")


def example(one: MethodInfo) -> str:
    """A text that asks for it, with its first setting."""
    shown: Any = next(iter(one.settings), None)
    if shown is None:
        return one.name
    value = shown.written(shown.default) if shown.default is not None else shown.choices[0] if shown.choices else "1"
    return f"{one.name}:{shown.name}={value}"
