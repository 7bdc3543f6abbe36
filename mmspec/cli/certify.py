"""`mmspec certify`: a test whether an accept step is exact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, refusing, save_json, say, screen
from mmspec.cli.options import check_choice, check_range, split_numbers
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next

if TYPE_CHECKING:
    from mmspec.certify.cases import Shape
    from mmspec.certify.certificate import Certificate

_DRAWN = ("without_replacement", "with_replacement", "deterministic")
_ARRAYS = ("torch", "numpy")


@command()
def certify(
    step: str,
    *,
    tree: str | None = None,
    drawn: str | None = None,
    values: int = 3,
    samples: int = 40_000,
    probes: int = 10_000,
    arrays: str = "torch",
    limit: float = 120,
    json: Path | None = None,
) -> None:
    """Test whether an accept step keeps the target's distribution, and name the known mistake that it makes if it does not.

    This imports MODULE, from this folder or from the installed packages, and calls CALLABLE in a process of its own: their
    code runs with your rights. The exit code is 0 for an exact step and 1 for any other.

    Args:
        step (MODULE:CALLABLE): Accept step; importing it runs the module's code.
        tree (P,P,...): Parent of every draft token, counted from 1, 0 for the last committed token; a chain of three is
            0,1,2.
        drawn (WAY): Way in which siblings were drawn: without_replacement, with_replacement or deterministic.
        values (V): Size of the vocabulary.
        samples (N): Samples per case, where the step draws its own random numbers.
        probes (N): Random uniforms per draft, to find small regions where the step is wrong; fewer where it is slow.
        arrays (NAME): Arrays that the step gets: torch or numpy.
        limit (SECONDS): Seconds without a finished case after which the step counts as hanging.

    Examples:
        mmspec certify my_rules:accept
        mmspec certify mmspec.certify.rules:block --tree 0,1,2
    """
    check_range(2, values=values)
    check_range(1000, samples=samples)
    check_range(100, probes=probes)
    check_range(1, limit=limit)
    if arrays not in _ARRAYS:
        raise BadOption(f"--arrays: expected {' or '.join(_ARRAYS)}, got {arrays!r}, name one of them")
    check_writable(json)
    from mmspec.certify.subprocess_run import certify_in_subprocess

    shapes = _shapes(tree, drawn)
    with progress() as bar:
        task = bar.add_task(f"examining {step}, cases", total=None)
        certificate = certify_in_subprocess(
            step,
            shapes=shapes,
            values=values,
            samples=samples,
            probes=probes,
            arrays=arrays,
            limit=limit,
            on_case=lambda case: bar.advance(task),
            on_start=lambda cases: bar.reset(task, total=cases),
        )
    save_json(json, certificate.to_dict())
    _show(certificate)
    say_next("mmspec methods --kind rule")
    if not certificate.exact:
        raise typer.Exit(1)


def _shapes(tree: str | None, drawn: str | None) -> list[Shape] | None:
    check_choice(_DRAWN, drawn=drawn)
    if tree is None and drawn is None:
        return None
    from mmspec.certify.cases import Shape

    with refusing():
        return [Shape(split_numbers("--tree", tree, int) or (0, 1), drawn or _DRAWN[0])]


def _show(certificate: Certificate) -> None:
    sampled, rows = certificate.method == "samples", []
    for case in certificate.cases:
        statistic = "impossible" if case.statistic is None else f"{case.statistic:.1f}"
        tail = (statistic, f"{case.limit:.1f}") if sampled else (case.regions,)
        rows.append(
            (
                case.laws,
                ",".join(map(str, case.parents)),
                case.drawn.replace("_", " "),
                case.drafts,
                f"{case.accepted:.3f}",
                f"{case.distance:.2g}",
                *tail,
                "passed" if case.passed else "off",
            )
        )
    last = ("chi-square", "fails above") if sampled else ("regions",)
    print_table(
        f"{certificate.step}: joint distribution of the tokens of a round, against the target's",
        ("laws", "parents", "drawn", "drafts", "accepted a round", "distance", *last, "result"),
        rows,
    )
    if not certificate.exact:
        verdict = f"[red]not exact[/red]: a distance of {certificate.distance:.3g}"
    elif sampled:
        verdict = "[green]passed[/green], as far as samples tell; distances are those of chance"
    else:
        verdict = (
            f"[green]exact[/green] to rounding: a distance of at most {certificate.distance:.2g}; {certificate.bound()}"
        )
    screen().print(verdict, soft_wrap=True)
    like, says = certificate.behaves_like, certificate.says
    if not certificate.bound():  # a verdict with a bound says all of it
        say(f'behaves like "{like}": {says}' if like else says)
    for line in (*(f"note: {note}" for note in certificate.notes), f"tried: {certificate.sizes()}"):
        say(line)
