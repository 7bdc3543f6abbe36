"""`mmspec bench`: methods against one another on the same requests, a command for every domain of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from mmspec.cli.command import SHARED, command, option
from mmspec.cli.console import (
    check_writable,
    print_table,
    quiet_transformers,
    refusing,
    reports_errors,
    save_json,
    say,
    spinner,
    step_progress,
)
from mmspec.cli.options import named_paths, split_names, split_numbers
from mmspec.evaluate.engine.config import BenchConfig, flag_of
from mmspec.evaluate.registry import DOMAINS, config_of, domain_of, machine_bench

if TYPE_CHECKING:
    from mmspec.evaluate.engine.domain import Domain


_PAIRS = tuple[tuple[str, str], ...]


def option_parameters(config: type[BenchConfig]) -> Iterator[Parameter]:
    """A typer option per field: several numbers or names are one text with commas, named paths may be repeated."""
    types = _types(config)
    for one in fields(config):
        kind, many = types[one.name], _items(types[one.name])
        taken = list[str] | None if kind == _PAIRS else str | None if many else kind
        shown = typer.Option(flag_of(config, one.name), help=one.metadata["help"], metavar=one.metadata["shown"])
        default = None if many else one.default
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=Annotated[taken, shown], default=default)


def config_values(config: type[BenchConfig], given: dict[str, Any]) -> dict[str, Any]:
    """The config's fields from what typer was given.   Raises BadOption for texts that are none of its values."""
    types = _types(config)
    return {one.name: _value(config, one, types[one.name], given[one.name]) for one in fields(config)}


def _value(config: type[BenchConfig], one: Field, kind: Any, given: Any) -> Any:
    flag, item = flag_of(config, one.name), _items(kind)
    if item is None:
        return given
    if given is None:
        return one.default
    if kind == _PAIRS:
        return tuple((name, str(path)) for name, path in named_paths(flag, given))
    return split_names(flag, given) if item is str else split_numbers(flag, given, item)


def _types(config: type[BenchConfig]) -> dict[str, Any]:
    """The type of every field, without None."""
    found = get_type_hints(config)
    return {one.name: _without_none(found[one.name]) for one in fields(config) if one.default is not MISSING}


def _without_none(kind: Any) -> Any:
    some = [one for one in get_args(kind) if one is not NoneType]
    return some[0] if NoneType in get_args(kind) and len(some) == 1 else kind


def _items(kind: Any) -> Any:
    """The type of a tuple's items; None for what is no tuple."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None


def save_figures(json: Path | None, log: Path | None, result: dict) -> None:
    """Write a finished bench and delete the resume log, so that the next run measures again."""
    save_json(json, result)
    if log is not None:
        log.unlink(missing_ok=True)


def show_result(domain: Domain, result: dict, markdown: Path | None, plot: Path | None) -> None:
    """Prints the tables, writes them and the curves where asked to; raises ValueError for what is wrong with the rows."""
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


_KEPT = (
    "What is left out is as the suite has it. With --json, what is finished is kept beside FILE until all is: stopped, the "
    "same command goes on."
)
_FILES = ("json", "markdown", "plot")

app = typer.Typer(help="Compare decoding methods on the same prompts.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Compare decoding methods on the same prompts."""


def bench_command(name: str) -> Callable[..., None]:
    """The command that benches this domain."""
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

    kinds = {one: Annotated[Path | None, option(*SHARED[one])] for one in _FILES}
    files = [Parameter(one, Parameter.KEYWORD_ONLY, annotation=kind, default=None) for one, kind in kinds.items()]
    run.__signature__ = Signature([*option_parameters(config), *files])
    run.__annotations__ = {one.name: one.annotation for one in run.__signature__.parameters.values()}
    run.__name__, run.__doc__ = name, f"{config.about}\n\n{_KEPT}"
    return reports_errors(run)


for _name in DOMAINS:
    app.command(_name)(bench_command(_name))


@app.command()
@command()
def kernels(*, device: str | None = None, tiny: bool = False, repeats: int = 20, json: Path | None = None) -> None:
    """The verify core's ops against straightforward torch code and the memory they have to read.

    Microseconds, bandwidth and launches are figures of a GPU; a CPU gives ratios only.

    Args:
        device (NAME): cpu or cuda; a GPU where there is one, if left out.
        tiny (--tiny): Small sizes: that it runs, not how fast.
        repeats (N): Timed runs of each op and pass.
    """
    _machine("kernels", json, device, tiny, repeats)


@app.command()
@command()
def gpu(
    *, steps: str | None = None, device: str | None = None, tiny: bool = False, repeats: int = 20, json: Path | None = None
) -> None:  # fmt: skip
    """What a GPU is worth: the ops, what a pass over several drafted values costs models of 7B and 3B shapes, and speedups.

    Models of those shapes have random weights: their curve is a cost and no speed. Speedups are of a captioner and a
    text-to-image model of over 100 million parameters each, which are trained on the spot in minutes.

    Args:
        steps (NAMES): Some of kernels, cost, vlm, image; all if left out.
        device (NAME): cpu or cuda; a GPU where there is one, if left out.
        tiny (--tiny): Small sizes: that it runs, not how fast.
        repeats (N): Timed runs of each op and pass.
    """
    _machine("gpu", json, device, tiny, repeats, steps=split_names("--steps", steps) if steps else ())


def _machine(name: str, json: Path | None, *given: Any, **more: Any) -> None:
    """Runs a bench of the machine, prints its rows and writes them."""
    check_writable(json)
    bench = machine_bench(name)
    with refusing():
        result = bench.run(*given, **more)
    save_json(json, result)
    shown = [bench.shown(row) for row in result["rows"]]
    print_table(bench.ABOUT, shown[0], [one.values() for one in shown])


def _config(config: type[BenchConfig], given: dict[str, Any]) -> BenchConfig:
    """The bench of these settings; what it refuses is a usage error."""
    with refusing():
        return config(**given)


def _check_plot(domain: Domain, config: BenchConfig) -> None:
    """Refuses, before the bench runs, a plot that could not be drawn behind it."""
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
    title = f"bench {domain.name}, suite {config.suite}"
    with step_progress(title, config.requests(), config.parts()) as (on_run, on_part):
        return bench(domain, config, resources, on_run=on_run, on_part=on_part, log=log)


@app.command()
@command()
def curves(logs: list[str], *, plot: Path | None = None, json: Path | None = None) -> None:
    """Accept length against training steps, from the logs that training writes.

    Args:
        logs (NAME=FILE): Training logs (JSONL); several are compared.
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
