"""`mmspec bench`: methods against one another on the same requests, a command for every domain of the registry."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.bench_options import parameters, settings
from mmspec.cli.console import check_writable, quiet_transformers, refusing, save_json, screen, told, waiting
from mmspec.cli.options import Json, Markdown, Plot, named_paths, names
from mmspec.cli.steps import steps
from mmspec.cli.tables import bench_log, print_records, save_figures, show
from mmspec.evaluate.registry import DOMAINS, config_of, domain_of, machine_bench

if TYPE_CHECKING:
    from mmspec.evaluate.engine.config import BenchConfig
    from mmspec.evaluate.engine.domain import Domain

_KEPT = (
    "What is left out is as the suite has it. With --json, what is finished is kept beside FILE until all is: stopped, the "
    "same command goes on."
)
_FILES = {"json": Json, "markdown": Markdown, "plot": Plot}

app = typer.Typer(help="Compare decoding methods on the same prompts.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Compare decoding methods on the same prompts."""


def command(name: str) -> Callable[..., None]:
    """The command that benches this domain."""
    config = config_of(name)

    def run(json: Path | None, markdown: Path | None, plot: Path | None, **given: Any) -> None:
        log = bench_log(json)
        check_writable(json, markdown, plot, log)
        asked = _config(config, settings(config, given))
        domain = domain_of(name)
        if plot is not None:
            _check_plot(domain, asked)
        result = _run(domain, asked, log)
        save_figures(json, log, result)
        show(domain, result, markdown, plot)

    files = [Parameter(one, Parameter.KEYWORD_ONLY, annotation=kind, default=None) for one, kind in _FILES.items()]
    run.__signature__ = Signature([*parameters(config), *files])
    run.__annotations__ = {one.name: one.annotation for one in run.__signature__.parameters.values()}
    run.__name__, run.__doc__ = name, f"{config.about}\n\n{_KEPT}"
    return told(run)


for _name in DOMAINS:
    app.command(_name)(command(_name))


_Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="cpu or cuda; a GPU where there is one, if left out.")
]
_Tiny = Annotated[bool, typer.Option("--tiny", help="Small sizes: that it runs, not how fast.")]
_Steps = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Some of kernels, cost, texts, images; all if left out.")
]
_Repeats = Annotated[int, typer.Option(metavar="N", help="Timed runs of each op and pass.")]


@app.command()
@told
def kernels(device: _Device = None, tiny: _Tiny = False, repeats: _Repeats = 20, json: Json = None) -> None:
    """The verify core's ops against straightforward torch code and the memory they have to read.

    Microseconds, bandwidth and launches are figures of a GPU; a CPU gives ratios only.
    """
    _machine("kernels", json, device, tiny, repeats)


@app.command()
@told
def gpu(
    steps: _Steps = None,
    device: _Device = None,
    tiny: _Tiny = False,
    repeats: _Repeats = 20,
    json: Json = None,
) -> None:
    """What a GPU is worth: the ops, what a pass over several drafted values costs models of 7B and 3B shapes, and speedups.

    Models of those shapes have random weights: their curve is a cost and no speed. Speedups are of a captioner and a
    text-to-image model of over 100 million parameters each, which are trained on the spot in minutes.
    """
    _machine("gpu", json, device, tiny, repeats, steps=names("--steps", steps) if steps else ())


def _machine(name: str, json: Path | None, *given: Any, **more: Any) -> None:
    """Runs a bench of the machine, prints its rows and writes them."""
    check_writable(json)
    bench = machine_bench(name)
    with refusing():
        result = bench.run(*given, **more)
    save_json(json, result)
    print_records(bench.ABOUT, [bench.shown(row) for row in result["rows"]])


def _config(config: type[BenchConfig], given: dict[str, Any]) -> BenchConfig:
    """The bench of these settings; what it refuses is a usage error."""
    with refusing():
        return config(**given)


def _check_plot(domain: Domain, config: BenchConfig) -> None:
    """Refuses, before the bench runs, a plot that could not be drawn behind it."""
    from mmspec.evaluate.pages.plots import need_matplotlib

    with refusing():
        need_matplotlib()
        domain.panels({"env": {"suite": config.suite}, "rows": []})


def _run(domain: Domain, config: BenchConfig, log: Path | None) -> dict:
    from mmspec.evaluate.engine.bench import bench

    with waiting("loading the model"):
        quiet_transformers()
        resources = domain.resources(config)
    with refusing():
        config.check(resources)
    title = f"bench {domain.name}, suite {config.suite}"
    with steps(title, config.requests(), config.parts()) as (on_run, on_part):
        return bench(domain, config, resources, on_run=on_run, on_part=on_part, log=log)


@app.command()
@told
def curves(
    logs: Annotated[
        list[str], typer.Argument(metavar="NAME=FILE", help="Training logs (JSONL); several are compared.")
    ],
    plot: Plot = None,
    json: Json = None,
) -> None:
    """Accept length against training steps, from the logs that training writes."""
    check_writable(plot, json)
    from mmspec.evaluate.pages.curves import training_panels
    from mmspec.evaluate.pages.plots import draw

    with refusing():
        (panel,) = training_panels(dict(named_paths("NAME=FILE", logs)))
    save_json(json, {name: [list(pair) for pair in zip(*line, strict=True)] for name, line in panel.lines.items()})
    if plot is not None:
        draw([panel], plot)
    out = screen()
    for name, (steps_, values) in panel.lines.items():
        shown = ", ".join(f"{step}: {value:g}" for step, value in zip(steps_, values, strict=True))
        out.print(f"{name}  {shown}", markup=False, soft_wrap=True)
