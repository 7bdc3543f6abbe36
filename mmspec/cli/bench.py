"""`mmspec bench`: methods against one another on the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, check_writable, progress, save_json, screen, told
from mmspec.cli.models import ZOO, open_shelf
from mmspec.cli.options import Json, numbers

if TYPE_CHECKING:
    from mmspec.evaluate.bench_vlm import VlmBench

app = typer.Typer(help="Compare decoding methods on the same prompts.", no_args_is_help=True)

Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the tables as Markdown to this file.")]


@app.callback()
def _group() -> None:
    """Compare decoding methods on the same prompts."""


@app.command()
@told
def vlm(
    prompts: Annotated[int, typer.Option(help="Held-out prompts.")] = 30,
    new_tokens: Annotated[int, typer.Option(help="Tokens every method generates per prompt.")] = 128,
    batch: Annotated[str, typer.Option(metavar="N,N", help="Batch sizes.")] = "1,4",
    temperature: Annotated[str, typer.Option(metavar="T,T", help="Temperatures.")] = "0,1",
    methods: Annotated[str | None, typer.Option(metavar="KEY,KEY", help="Rows to run; all when left out.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of every method on every prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Which held-out prompts, and the seed of sampled rows.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads torch computes with.")] = 2,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """The zoo's vision-language model: transformers, plain, and every drafter, paired and interleaved."""
    check_writable(json, markdown)
    sizes, warmths = numbers("--batch", batch, int), numbers("--temperature", temperature, float)
    keys = tuple(methods.split(",")) if methods else None
    result = _run(_config(prompts, new_tokens, sizes, warmths, keys, repeats, seed, threads))
    from mmspec.core.files import write_text_atomic
    from mmspec.evaluate.bench_vlm import verdict
    from mmspec.evaluate.report import environment_line, same_drafts_notes, tables
    from mmspec.evaluate.report import markdown as as_markdown

    save_json(json, result)
    if markdown is not None:
        write_text_atomic(markdown, as_markdown(result))
    out = screen()
    out.print(environment_line(result["env"]), markup=False, soft_wrap=True)
    for part in tables(result["rows"]):
        out.print(part, markup=False, soft_wrap=isinstance(part, str))
    for note in same_drafts_notes(result):
        out.print(note, markup=False, soft_wrap=True)
    wrong = verdict(result)
    if wrong:
        raise ValueError("; ".join(wrong))


def _config(*settings: object) -> VlmBench:
    """The bench of these settings, in the order of VlmBench's fields; what it refuses is a usage error."""
    from mmspec.evaluate.bench_vlm import VlmBench

    try:
        return VlmBench(*settings)
    except ValueError as error:
        raise BadOption(str(error)) from error


def _run(config: VlmBench) -> dict:
    from mmspec.evaluate.bench_vlm import bench_vlm

    shelf = open_shelf(ZOO)
    with progress() as bar:
        task = bar.add_task("warming up", total=config.requests())
        return bench_vlm(config, shelf, lambda text: bar.update(task, advance=1, description=text))
