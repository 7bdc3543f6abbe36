"""`mmspec certify`: is somebody's accept step exact?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, check_writable, progress, refusing, reports_errors, save_json, screen
from mmspec.cli.options import Json, check_at_least, split_numbers

if TYPE_CHECKING:
    from mmspec.certify.cases import Shape
    from mmspec.certify.certificate import Certificate

_DRAWN = ("without_replacement", "with_replacement", "deterministic")
_ARRAYS = ("torch", "numpy")


@reports_errors
def certify(
    step: Annotated[str, typer.Argument(metavar="MODULE:CALLABLE", help="The step. Importing it runs the module's code.")],
    tree: Annotated[
        str | None,
        typer.Option(metavar="P,P,...", help="The parent of every drafted token, counted from 1, 0 for what was committed "
                     "last; a chain of three is 0,1,2."),
    ] = None,
    drawn: Annotated[
        str | None, typer.Option(metavar="WAY", help="How siblings were drawn: without_replacement, with_replacement or "
                                 "deterministic."),
    ] = None,
    values: Annotated[int, typer.Option(metavar="V", help="Size of the vocabulary.")] = 3,
    samples: Annotated[int, typer.Option(metavar="N", help="A case, where the step draws its own random numbers.")] = 40_000,
    probes: Annotated[int, typer.Option(metavar="N", help="Random uniforms of each draft, to look for islands where the step "
                                        "is wrong; fewer where it is slow.")] = 10_000,
    arrays: Annotated[str, typer.Option(help="torch or numpy: what the step is given.")] = "torch",
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="Without a finished case it counts as hanging.")] = 120,
    json: Json = None,
) -> None:  # fmt: skip
    """Does an accept step keep the target's law? If not: how far is it off, and which known mistake does it make?

    This imports MODULE, from here or from what is installed, and calls CALLABLE in a process of its own: their code runs
    with your rights. Ends with code 0 for an exact step and 1 for any other.
    """
    check_at_least("--values", values, 2)
    check_at_least("--samples", samples, 1000)
    check_at_least("--probes", probes, 100)
    check_at_least("--limit", limit, 1)
    if arrays not in _ARRAYS:
        raise BadOption(f"--arrays: expected torch or numpy, got {arrays!r}, name one of them")
    check_writable(json)
    from mmspec.certify.subprocess_run import certify_in_subprocess

    shapes = _shapes(tree, drawn)
    with progress() as bar:
        task = bar.add_task(f"examining {step}", total=None)
        certificate = certify_in_subprocess(step, shapes=shapes, values=values, samples=samples, probes=probes, arrays=arrays,
                              limit=limit, on_case=lambda case: bar.advance(task))  # fmt: skip
    save_json(json, certificate.to_dict())
    _show(certificate)
    if not certificate.exact:
        raise typer.Exit(1)


def _shapes(tree: str | None, drawn: str | None) -> list[Shape] | None:
    if drawn is not None and drawn not in _DRAWN:
        raise BadOption(f"--drawn: expected {', '.join(_DRAWN[:2])} or {_DRAWN[2]}, got {drawn!r}, name one of them")
    if tree is None and drawn is None:
        return None
    from mmspec.certify.cases import Shape

    with refusing():
        return [Shape(split_numbers("--tree", tree, int) or (0, 1), drawn or _DRAWN[0])]


def _show(certificate: Certificate) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(f"{certificate.step}: joint law of what a round emits, against the target's"), title_justify="left"
    )
    sampled = certificate.method == "samples"
    last = ("chi-square", "fails above") if sampled else ("regions",)
    for name in ("laws", "parents", "drawn", "drafts", "accepted a round", "distance", *last, ""):
        table.add_column(name)
    for case in certificate.cases:
        statistic = "impossible" if case.statistic is None else f"{case.statistic:.1f}"
        tail = (statistic, f"{case.limit:.1f}") if sampled else (str(case.regions),)
        table.add_row(case.laws, ",".join(map(str, case.parents)), case.drawn.replace("_", " "), str(case.drafts),
                      f"{case.accepted:.3f}", f"{case.distance:.2g}", *tail, "" if case.passed else "off")  # fmt: skip
    out = screen()
    out.print(table)
    if not certificate.exact:
        verdict = f"[red]not exact[/red]: a distance of {certificate.distance:.3g}"
    elif sampled:
        verdict = "[green]passed[/green], as far as samples tell; distances are those of chance"
    else:
        verdict = (
            f"[green]exact[/green] to rounding: a distance of at most {certificate.distance:.2g}; {certificate.bound()}"
        )
    out.print(verdict, soft_wrap=True)
    like = (
        f'behaves like "{certificate.behaves_like}": {certificate.says}'
        if certificate.behaves_like
        else certificate.says
    )
    claim = [] if certificate.bound() else [like]  # a verdict with a bound says all of it
    for line in (*claim, *(f"note: {note}" for note in certificate.notes), f"tried: {certificate.sizes()}"):
        out.print(line, markup=False, soft_wrap=True)
