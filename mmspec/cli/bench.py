"""`mmspec bench`: methods compared on the same requests, with a command for every domain of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from mmspec.cli.command import SHARED, GroupHelp, LateHelp, command, option
from mmspec.cli.console import (
    check_writable,
    quiet_transformers,
    refusing,
    reports_errors,
    save_json,
    say,
    spinner,
    step_progress,
)
from mmspec.cli.options import named_paths, split_names, split_numbers
from mmspec.cli.sizing import sizing
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next
from mmspec.evaluate.engine.config import BenchConfig, flag_of
from mmspec.evaluate.engine.registry import DOMAINS, config_of, domain_of, machine_bench

if TYPE_CHECKING:
    from mmspec.evaluate.engine.domain import Domain

_PAIRS = tuple[tuple[str, str], ...]


def option_parameters(config: type[BenchConfig]) -> Iterator[Parameter]:
    """Yield a typer option a field: several numbers or names are one text with commas, named paths may be repeated."""
    types = _types(config)
    for field in fields(config):
        kind, many = types[field.name], _items(types[field.name])
        value = list[str] | None if kind == _PAIRS else str | None if many else kind
        shown = typer.Option(flag_of(config, field.name), help=field.metadata["help"], metavar=field.metadata["shown"])
        default = None if many else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=Annotated[value, shown], default=default)


def config_values(config: type[BenchConfig], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config's fields from the values of the command line by name."""
    types = _types(config)
    return {field.name: _value(config, field, types[field.name], given[field.name]) for field in fields(config)}


def _value(config: type[BenchConfig], field: Field, kind: Any, given: Any) -> Any:
    flag, item = flag_of(config, field.name), _items(kind)
    if item is None:
        return given
    if given is None:
        return field.default
    if kind == _PAIRS:
        return tuple((name, str(path)) for name, path in named_paths(flag, given))
    return split_names(flag, given) if item is str else split_numbers(flag, given, item)


def _types(config: type[BenchConfig]) -> dict[str, Any]:
    """Return the type of every field, without None."""
    hints = get_type_hints(config)
    return {field.name: _without_none(hints[field.name]) for field in fields(config) if field.default is not MISSING}


def _without_none(kind: Any) -> Any:
    others = [argument for argument in get_args(kind) if argument is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _items(kind: Any) -> Any:
    """Return the type of a tuple's items; None for other types."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def save_figures(json: Path | None, log: Path | None, result: dict) -> None:
    """Write a finished bench and delete the resume log, so that the next run measures again."""
    save_json(json, result)
    if log is not None:
        log.unlink(missing_ok=True)


def show_result(domain: Domain, result: dict, markdown: Path | None, plot: Path | None) -> None:
    """Print and write tables and curves; failed rows, or exact rows with other output than plain, are errors."""
    from mmspec.evaluate.engine.domain import bench_failures
    from mmspec.evaluate.report.bench_page import environment_line, linked, tables
    from mmspec.evaluate.report.bench_page import markdown as as_markdown
    from mmspec.evaluate.report.plots import draw
    from mmspec.io.files import write_text_atomic

    page = domain.page(result)
    if markdown is not None:
        write_text_atomic(markdown, as_markdown(page, result, linked(plot, markdown)))
    if plot is not None:
        draw(domain.panels(result), plot)
    say(environment_line(page, result))
    for part in tables(page, result):
        if isinstance(part, str):
            say(part)
        else:
            print_table(part.title, part.heads, part.lines, part.figures)
    wrong = bench_failures(domain, result)
    if wrong:
        raise ValueError("; ".join(wrong))


_RESUMES = (
    "Options that are left out take the values of the suite. With --json, finished rows are kept beside FILE until the bench "
    "ends, and the same command continues a stopped bench."
)
_FILES = ("json", "markdown", "plot")

_HELP = "Compare decoding methods on the same prompts: passes, seconds, and quality where a method is relaxed."
app = typer.Typer(cls=GroupHelp, help=_HELP, no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Compare decoding methods on the same prompts.

    Examples:
        mmspec bench vlm --suite drafters --json drafters.json
        mmspec bench image --methods scd-gumbel-32,sjd-32
        mmspec bench kernels
    """


def bench_command(name: str) -> Callable[..., None]:
    config = config_of(name)

    def run(json: Path | None, markdown: Path | None, plot: Path | None, **given: Any) -> None:
        from mmspec.evaluate.engine.resume_log import log_beside

        log = log_beside(json)
        check_writable(json, markdown, plot, log)
        values = _config(config, config_values(config, given))
        domain = domain_of(name)
        if plot is not None:
            _check_plot(domain, values)
        result = _run(domain, values, log)
        save_figures(json, log, result)
        show_result(domain, result, markdown, plot)
        if json is None:
            say_next(f"mmspec bench {name} --json FILE --markdown PAGE.md")

    kinds = {file: Annotated[Path | None, option(*SHARED[file])] for file in _FILES}
    files = [Parameter(file, Parameter.KEYWORD_ONLY, annotation=kind, default=None) for file, kind in kinds.items()]
    run.__signature__ = Signature([*option_parameters(config), *files])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in run.__signature__.parameters.values()}
    about = (
        f"Compare decoding methods for {_TITLES.get(name, name)} on the same prompts.\n\n{config.about}\n\n{_RESUMES}"
    )
    run.__name__, run.__doc__ = name, about
    bench = reports_errors(run)
    bench.texts, bench.examples = {}, _EXAMPLES.get(name, (f"mmspec bench {name} --json {name}.json",))
    return bench


_TITLES = {"vlm": "text and pictures", "image": "discrete images", "continuous": "continuous images", "video": "videos"}
_EXAMPLES = {
    "vlm": ("mmspec bench vlm --suite drafters --json drafters.json", "mmspec bench vlm --model smollm2 --suite real"),
    "image": ("mmspec bench image --suite speed --json image.json",),
    "continuous": ("mmspec bench continuous --json mar.json", "mmspec bench continuous --model car --json car.json"),
    "video": ("mmspec bench video --suite tokens --json tokens.json", "mmspec bench video --suite routers"),
}
for _name in DOMAINS:
    app.command(_name, cls=LateHelp)(bench_command(_name))
app.command(cls=LateHelp)(sizing)


@app.command(cls=LateHelp)
@command()
def kernels(*, device: str = "auto", tiny: bool = False, repeats: int = 20, json: Path | None = None) -> None:
    """Time the ops of the verify step against plain torch code and the memory that they read.

    Microseconds, bandwidth and launches need a GPU; a CPU gives ratios only.

    Args:
        tiny (--tiny): Use small sizes, to see that every op runs.
        repeats (N): Timed runs of each op and pass.

    Examples:
        mmspec bench kernels
        mmspec bench kernels --device cpu --tiny
    """
    _machine("kernels", json, device, tiny, repeats)


@app.command(cls=LateHelp)
@command()
def gpu(
    *, steps: str | None = None, device: str = "auto", tiny: bool = False, repeats: int = 20, json: Path | None = None
) -> None:
    """Time drafted decoding on a GPU: the ops, the cost of passes of 7B and 3B shapes, and speedups of trained models.

    The models of 7B and 3B shapes have random weights, so that their curve is a cost and not a speed. The speedups are those
    of a captioner and a text-to-image model of over 100 million parameters each, which are trained in minutes first.

    Args:
        steps (NAMES): Steps to run, separated by commas: kernels, cost, real, vlm, image; all when left out.
        tiny (--tiny): Use small sizes, to see that every step runs.
        repeats (N): Timed runs of each op and pass.

    Examples:
        mmspec bench gpu --json gpu.json
        mmspec bench gpu --steps kernels,cost
    """
    _machine("gpu", json, device, tiny, repeats, steps=split_names("--steps", steps) if steps else ())


def _machine(name: str, json: Path | None, *given: Any, **more: Any) -> None:
    """Run a bench of the machine; print its rows and write them, after every row too, so that a stop loses none."""
    check_writable(json)
    bench, rows = machine_bench(name), []
    part = {"env": {"bench": name, "finished": False}, "rows": rows}
    with refusing():
        result = bench.run(*given, on_row=lambda row: (rows.append(row), save_json(json, part)), **more)
    save_json(json, result)
    rows = [bench.shown(row) for row in result["rows"]]
    print_table(bench.ABOUT, tuple(rows[0]), [row.values() for row in rows])


def _config(config: type[BenchConfig], given: dict[str, Any]) -> BenchConfig:
    with refusing():
        return config(**given)


def _check_plot(domain: Domain, config: BenchConfig) -> None:
    from mmspec.evaluate.report.style import need_matplotlib

    with refusing():
        need_matplotlib()
        domain.panels({"env": {"suite": config.suite}, "rows": []})


def _run(domain: Domain, config: BenchConfig, log: Path | None) -> dict:
    from mmspec.evaluate.engine.bench import bench

    with spinner("loading the model"):
        quiet_transformers()
        resources = domain.resources(config)
    with refusing():
        config.check(resources)
    with step_progress(f"bench {domain.name}, suite {config.suite}", config.requests(), config.parts()) as (
        on_run,
        on_part,
    ):
        return bench(domain, config, resources, on_run=on_run, on_part=on_part, log=log)


@app.command(cls=LateHelp)
@command()
def curves(logs: list[str], *, plot: Path | None = None, json: Path | None = None) -> None:
    """Show accept length against training steps, from the logs of `mmspec train`.

    Args:
        logs (NAME=FILE): Name and training log (JSONL) of a run; several runs are compared.

    Examples:
        mmspec bench curves msd=my-msd/work/log.jsonl --plot curves.png
    """
    check_writable(plot, json)
    from mmspec.evaluate.report.plots import draw, training_panels

    with refusing():
        (panel,) = training_panels(dict(named_paths("NAME=FILE", logs)))
    save_json(json, {name: [list(pair) for pair in zip(*line, strict=True)] for name, line in panel.lines.items()})
    if plot is not None:
        draw([panel], plot)
    for name, line in panel.lines.items():
        say(f"{name}  {', '.join(f'{step}: {value:g}' for step, value in zip(*line, strict=True))}")
