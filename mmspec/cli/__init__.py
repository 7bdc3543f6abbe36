"""The `mmspec` command. Commands import what they need when they run, so that `mmspec --help` is quick."""

from __future__ import annotations

import typer

from mmspec.cli import bench, train, zoo
from mmspec.cli.caption import caption
from mmspec.cli.certify import certify
from mmspec.cli.convert import convert
from mmspec.cli.demo import demo
from mmspec.cli.estimate import estimate
from mmspec.cli.evaluate import evaluate
from mmspec.cli.image import image
from mmspec.cli.methods import methods
from mmspec.cli.report import report
from mmspec.cli.supported import supported
from mmspec.cli.video import video
from mmspec.cli.web import web

_HELP = "Faster decoding for multimodal models, with the same output: draft cheaply, verify once."
app = typer.Typer(
    name="mmspec",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (demo, caption, image, video, evaluate, estimate, report, convert, certify, methods, supported, web):
    app.command()(_command)
for _name, _group in {"bench": bench.app, "train": train.app, "zoo": zoo.app}.items():
    app.add_typer(_group, name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mmspec import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.callback(help=_HELP)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Options of the command itself."""
