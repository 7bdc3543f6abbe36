"""`mmspec bench`: methods against one another on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.bench_image import bench_image
from mmspec.cli.console import check_writable, progress, refusing, save_json, screen, told
from mmspec.cli.models import ZOO, open_shelf
from mmspec.cli.options import Json, Markdown, Plot, named_paths, names, numbers
from mmspec.cli.tables import bench_log, save_figures, show

if TYPE_CHECKING:
    from mmspec.evaluate.bench_vlm import VlmBench

app = typer.Typer(help="Compare decoding methods on the same prompts.", no_args_is_help=True)
app.command("image")(bench_image)


@app.callback()
def _group() -> None:
    """Compare decoding methods on the same prompts."""


@app.command()
@told
def vlm(
    suite: Annotated[str, typer.Option(help="methods, drafters, pictures, blocks or lengths.")] = "methods",
    prompts: Annotated[int | None, typer.Option(help="Held-out prompts of every task.")] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Longest answer in tokens.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="N,N", help="Batch sizes.")] = None,
    temperature: Annotated[str | None, typer.Option(metavar="T,T", help="Temperatures.")] = None,
    methods: Annotated[str | None, typer.Option(metavar="KEY,KEY", help="Rows to run; all when left out.")] = None,
    drafter_path: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FOLDER", help="A saved drafter to compare too; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of every method on every prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Which held-out prompts, and the seed of sampled rows.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads torch computes with.")] = 2,
    json: Json = None,
    markdown: Markdown = None,
    plot: Plot = None,
) -> None:
    """The zoo's vision-language model: transformers, plain, and every drafter, paired and interleaved.

    What is left out is as the suite has it. With --json, what is finished is kept beside FILE until all is: stopped, the
    same command goes on.
    """
    log = bench_log(json)
    check_writable(json, markdown, plot, log)
    config = _config(
        suite=suite,
        prompts=prompts,
        new_tokens=new_tokens,
        batches=numbers("--batch", batch, int),
        temperatures=numbers("--temperature", temperature, float),
        methods=_methods(methods),
        saved=tuple((name, str(folder)) for name, folder in named_paths("--drafter-path", drafter_path)),
        repeats=repeats,
        seed=seed,
        threads=threads,
    )
    if plot is not None:
        _check_plot(suite)
    result = _run(config, log)
    save_figures(json, log, result)
    from mmspec.evaluate.bench_vlm import verdict
    from mmspec.evaluate.plots import bench_panels

    show(result, markdown, plot, bench_panels, verdict)


def _config(**settings: object) -> VlmBench:
    """The bench of these settings; what it refuses is a usage error."""
    from mmspec.evaluate.bench_vlm import VlmBench

    with refusing():
        return VlmBench(**settings)


def _methods(text: str | None) -> tuple[str, ...] | None:
    """The keys of --methods, in which a drafter may have the name the zoo gives it."""
    from mmspec.evaluate.shelf import short_name

    found = names("--methods", text)
    return None if found is None else tuple(map(short_name, found))


def _check_plot(suite: str) -> None:
    """Refuses, before the bench runs, a plot that could not be drawn behind it."""
    from mmspec.evaluate.plots import bench_panels, need_matplotlib

    with refusing():
        need_matplotlib()
        bench_panels({"env": {"suite": suite}, "rows": []})


def _run(config: VlmBench, log: Path | None) -> dict:
    from mmspec.evaluate.bench_vlm import bench_vlm

    shelf = open_shelf(ZOO)
    with refusing():
        for _, folder in config.saved:
            shelf.drafter(folder)
    with progress() as bar:
        task = bar.add_task("warming up", total=config.requests())
        return bench_vlm(config, shelf, lambda text: bar.update(task, advance=1, description=text), log)


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
    from mmspec.evaluate.plots import draw, training_panels

    with refusing():
        (panel,) = training_panels(dict(named_paths("NAME=FILE", logs)))
    save_json(json, {name: [list(pair) for pair in zip(*line, strict=True)] for name, line in panel.lines.items()})
    if plot is not None:
        draw([panel], plot)
    out = screen()
    for name, (steps, values) in panel.lines.items():
        shown = ", ".join(f"{step}: {value:g}" for step, value in zip(steps, values, strict=True))
        out.print(f"{name}  {shown}", markup=False, soft_wrap=True)
