"""The `mmspec` command. Commands import their modules when they run, so that `mmspec --help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from mmspec.cli import bench, train, zoo
from mmspec.cli.caption import caption
from mmspec.cli.certify import certify
from mmspec.cli.check import check
from mmspec.cli.command import GroupHelp, LateHelp
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
_FIRST_STEPS = f"""mmspec: {_HELP[0].lower()}{_HELP[1:]}

Three things to try:
  mmspec demo                        see three captions grow, drafted and plain, with the same text
  mmspec image "a large red star on a navy background" --out star.png
  mmspec check MODEL                 look at your own model: a folder, a config or a hub id

mmspec --help lists all commands."""
app = typer.Typer(
    name="mmspec",
    cls=GroupHelp,
    help=_HELP,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_PANELS = {
    "Use a model": (demo, caption, image, video, web),
    "Look at a model": (check, supported, methods, estimate),
    "Measure": (evaluate, report, certify),
    "Convert": (convert, export),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(cls=LateHelp, rich_help_panel=_panel)(_command)
app.add_typer(bench.app, name="bench", rich_help_panel="Measure")
app.add_typer(train.app, name="train", rich_help_panel="Train and fetch")
app.add_typer(zoo.app, name="zoo", rich_help_panel="Train and fetch")


def _print_version(wanted: bool) -> None:
    if wanted:
        from mmspec import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.callback(cls=GroupHelp, help=_HELP, invoke_without_command=True)
@reports_errors
def _root(
    context: typer.Context,
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
    """Run the command, or print the first steps where there is no command.

    Examples:
        mmspec demo
        mmspec zoo scene --out scene.png
        mmspec caption scene.png --stream
        mmspec supported qwen2.5-vl
    """
    if modules:
        from mmspec.methods.modules import import_methods

        with refusing():
            for name in modules:
                import_methods(name)
    if context.invoked_subcommand is None:
        typer.echo(_FIRST_STEPS)
