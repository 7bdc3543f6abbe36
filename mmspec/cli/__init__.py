"""The `mmspec` command. Commands import what they need when they run, so that `mmspec --help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from mmspec.cli import bench, train, zoo
from mmspec.cli.caption import caption
from mmspec.cli.certify import certify
from mmspec.cli.check import check
from mmspec.cli.command import LateHelp
from mmspec.cli.console import refusing, reports_errors
from mmspec.cli.convert import convert
from mmspec.cli.demo import demo
from mmspec.cli.estimate import estimate
from mmspec.cli.evaluate import evaluate
from mmspec.cli.export import export
from mmspec.cli.image import image
from mmspec.cli.methods import methods
from mmspec.cli.report import report
from mmspec.cli.supported import supported
from mmspec.cli.video import video
from mmspec.cli.web import web

_HELP = "Faster decoding for multimodal models, with the same output: draft cheaply, verify once."
app = typer.Typer(name="mmspec", help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
_COMMANDS = (
    (demo, check, caption, image, video),
    (evaluate, report, estimate),
    (convert, export, certify, methods, supported, web),
)
for _command in (command for group in _COMMANDS for command in group):
    app.command(cls=LateHelp if hasattr(_command, "texts") else None)(_command)
for _name, _group in {"bench": bench.app, "train": train.app, "zoo": zoo.app}.items():
    app.add_typer(_group, name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mmspec import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.callback(help=_HELP)
@reports_errors
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Also know the methods of a module or a .py file; may be repeated."
        ),
    ] = None,
) -> None:
    """Options of the command itself."""
    if modules:
        from mmspec.methods.modules import import_methods

        with refusing():
            for name in modules:
                import_methods(name)
