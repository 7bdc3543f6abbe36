"""`mmspec bench image`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import check_writable, progress, quiet_transformers, refusing, told, waiting
from mmspec.cli.options import Json, Markdown, Plot, names, numbers
from mmspec.cli.tables import bench_log, save_figures, show

if TYPE_CHECKING:
    from mmspec.evaluate.image_config import ImageBench


@told
def bench_image(
    suite: Annotated[str, typer.Option(help="all (speed and quality), speed, quality or pareto.")] = "all",
    model: Annotated[str, typer.Option(help="The zoo's t2i or c2i.")] = "t2i",
    prompts: Annotated[int | None, typer.Option(help="Held-out prompts that are timed.")] = None,
    images: Annotated[int | None, typer.Option(help="Images of every quality figure.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="N,N", help="Batch sizes that are timed.")] = None,
    guidance: Annotated[str | None, typer.Option(metavar="S,S", help="Guidance scales.")] = None,
    top_k: Annotated[str | None, typer.Option(metavar="K,K", help="Top-k; 0 for all values.")] = None,
    temperature: Annotated[str | None, typer.Option(metavar="T,T", help="Temperatures.")] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="KEY,KEY", help="Rows or families of rows to run; all when left out.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of every method on every prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Which held-out prompts, and the seed of sampled rows.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads torch computes with.")] = 2,
    json: Json = None,
    markdown: Markdown = None,
    plot: Plot = None,
) -> None:
    """The zoo's image model: plain, exact and relaxed decoding; seconds, steps, and quality against plain images.

    What is left out is as the suite has it. With --json, what is finished is kept beside FILE until all is: stopped, the
    same command goes on.
    """
    log = bench_log(json)
    check_writable(json, markdown, plot, log)
    config = _config(
        suite=suite,
        model=model,
        prompts=prompts,
        images=images,
        batches=numbers("--batch", batch, int),
        guidance=numbers("--guidance", guidance, float),
        top_k=numbers("--top-k", top_k, int),
        temperatures=numbers("--temperature", temperature, float),
        methods=_methods(methods),
        repeats=repeats,
        seed=seed,
        threads=threads,
    )
    if plot is not None:
        _check_plot(suite)
    result = _run(config, log)
    save_figures(json, log, result)
    from mmspec.evaluate.bench_image import verdict
    from mmspec.evaluate.image_page import pareto_panels

    show(result, markdown, plot, pareto_panels, verdict)


def _config(**settings: object) -> ImageBench:
    """The bench of these settings; what it refuses is a usage error."""
    from mmspec.evaluate.image_config import ImageBench

    with refusing():
        return ImageBench(**settings)


def _methods(text: str | None) -> tuple[str, ...] | None:
    """The keys of --methods, in which a drafter may have the name the zoo gives it."""
    from mmspec.evaluate.image_decodings import short_name

    found = names("--methods", text)
    return None if found is None else tuple(map(short_name, found))


def _check_plot(suite: str) -> None:
    """Refuses, before the bench runs, a plot that could not be drawn behind it."""
    from mmspec.evaluate.image_page import pareto_panels
    from mmspec.evaluate.plots import need_matplotlib

    with refusing():
        need_matplotlib()
        pareto_panels({"env": {"suite": suite}, "rows": []})


def _run(config: ImageBench, log: Path | None) -> dict:
    with waiting("loading the model"):
        quiet_transformers()
        from mmspec.evaluate.bench_image import bench_image as run
        from mmspec.evaluate.image_shelf import zoo_shelf

        shelf = zoo_shelf(config.model)
    with progress() as bar:
        task = bar.add_task("warming up", total=config.requests())
        return run(config, shelf, lambda text: bar.update(task, advance=1, description=text), log)
