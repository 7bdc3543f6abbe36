"""`mmspec evaluate`: a grid of models, decodings and rules over a prompt set, kept and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import (
    BadOption,
    check_writable,
    quiet_transformers,
    refusing,
    reports_errors,
    save_json,
    screen,
    spinner,
    step_progress,
)
from mmspec.cli.options import Json, check_at_least, check_scale, split_numbers
from mmspec.cli.report import need_plots, show_report

if TYPE_CHECKING:
    from mmspec.evaluate.engine.plan import SweepPlan
    from mmspec.evaluate.engine.shards import Records
    from mmspec.evaluate.engine.work import SweepWork

MODEL = (
    "Of the zoo, such as vlm, t2i, car; or vlm|image|continuous|video=FOLDER with a saved model. May be repeated; all "
    "that the zoo has when left out."
)
DECODING = (
    "With settings: sjd:window=32, eagle:length=7; or the key of a bench's row. May be repeated; a few of every model's own "
    "when left out. Plain decoding is always there."
)
RULE = "Every decoding is run under it: exact, block, lantern:delta=0.2,k=64... May be repeated."
PROMPTS = "zoo, coco=FILE, imagenet=FILE, folder=DIR, texts=DIR, jsonl=FILE, or mmspec=DIR, the public benchmark of that name."
FORMS = "zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER"
REWARDS = "zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or pickscore=FILE"
REFERENCE = "Real pictures that drawn ones are held against; those of the prompt set when left out."
THREADS = "Threads torch computes with, in every worker; as torch is set when left out."
WORKERS = "Processes, or Ray's actors. More than one disturb one another's timings."
EXPORT = "Also write what was made as geneval, dpg or vbench read it; may be repeated."
Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's folder; made where there is none, gone on with where there is.")
]
Several = list[str] | None


@reports_errors
def evaluate(
    run: Run,
    model: Annotated[Several, typer.Option(metavar="NAME", help=MODEL)] = None,
    decoding: Annotated[Several, typer.Option(metavar="NAME", help=DECODING)] = None,
    rule: Annotated[Several, typer.Option(metavar="NAME", help=RULE)] = None,
    temperature: Annotated[str | None, typer.Option(metavar="T,T", help="Temperatures.")] = None,
    prompts: Annotated[str, typer.Option(metavar="SET", help=PROMPTS)] = "zoo",
    pictures: Annotated[Path | None, typer.Option(metavar="DIR", help="The pictures of coco or jsonl.")] = None,
    count: Annotated[int, typer.Option(metavar="N", help="Prompts of every model.")] = 32,
    samples: Annotated[int, typer.Option(metavar="N", help="Samples of every prompt and method.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the samples, and of the zoo's prompts.")] = 0,
    extractor: Annotated[str, typer.Option(metavar="NAME", help=f"What reads pictures: {FORMS}.")] = "zoo",
    reward: Annotated[str, typer.Option(metavar="NAME", help=f"What else scores pictures and films: {REWARDS}.")] = "",
    reference: Annotated[Path | None, typer.Option(metavar="DIR", help=REFERENCE)] = None,
    guidance: Annotated[float | None, typer.Option(metavar="S", help="Of pictures: guidance scale.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Of images of discrete tokens; 0 for all.")] = None,
    num_iter: Annotated[int | None, typer.Option(metavar="N", help="Of masked models: steps over a picture.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(metavar="N", help="Of texts.")] = None,
    blocks: Annotated[int | None, typer.Option(metavar="N", help="Of videos.")] = None,
    workers: Annotated[int, typer.Option(metavar="N", help=WORKERS)] = 1,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    part: Annotated[str, typer.Option(metavar="K/N", help="The K-th of N parts of the work, for N machines.")] = "1/1",
    threads: Annotated[int | None, typer.Option(metavar="N", help=THREADS)] = None,
    export: Annotated[Several, typer.Option(metavar="KIND=DIR", help=EXPORT)] = None,
    report: Annotated[bool, typer.Option(help="Write tables and plots into RUN/report when all is there.")] = True,
    json: Json = None,
) -> None:
    """Run every model under every decoding and rule on the same prompts; keep what is made, its speed and its quality.

    A run is a folder of JSONL shards and what was made. The same command goes on where it was killed; parts of other
    processes and machines are merged by copying their shards and media into one folder.
    """
    check_writable(json)
    check_scale("--guidance", guidance)
    exports = _exports(export)
    with spinner("reading the plan"):
        quiet_transformers()
        with refusing():
            wished = {
                "guidance": guidance,
                "top_k": top_k,
                "num_iter": num_iter,
                "new_tokens": max_new_tokens,
                "blocks": blocks,
            }
            given = dict(models=model, decodings=decoding, rules=rule, prompts=prompts, pictures=pictures, count=count)
            drawn = dict(
                reward=reward, samples=samples, seed=seed, extractor=extractor, reference=reference, threads=threads
            )
            temperatures = split_numbers("--temperature", temperature, float)
            for one in temperatures or ():
                check_at_least("--temperature", one, 0)
            drawn |= dict(temperatures=temperatures, part=_part(part))
            work = _checked(_plan(run, wished, **given, **drawn), engine, workers, report)
    found = _run(work, workers, engine)
    for kind, folder in exports:
        from mmspec.evaluate.exports import export_run

        screen().print(export_run(kind, found, folder), markup=False, soft_wrap=True)
    missing = work.missing(found)
    if missing:
        notice = f"{run}: {missing} samples of other parts are missing, the report waits for them"
        screen().print(notice, markup=False, soft_wrap=True)
    elif report:
        save_json(json, show_report(found, work.plan.folder / "report", plots=True))


def _plan(run: Path, wished: dict, **given: object) -> SweepPlan:
    from mmspec.evaluate.engine.domain import SamplingOverrides
    from mmspec.evaluate.engine.media import run_folder
    from mmspec.evaluate.engine.plan import SweepPlan

    several = ("models", "decodings", "rules", "temperatures")
    given = {name: tuple(value or ()) if name in several else value for name, value in given.items()}
    return SweepPlan(folder=run_folder(run), wishes=SamplingOverrides(**wished), **given)


def _checked(plan: SweepPlan, engine: str, workers: int, report: bool) -> SweepWork:
    """The work of a plan.   Refuses, before anything is drawn, what could not be run to its end."""
    from mmspec.evaluate.engine.work import SweepWork, check_engine

    check_engine(engine, workers)
    if report:
        need_plots("--report", "--no-report")
    work = SweepWork.of(plan)
    work.header(workers)
    work.known()
    return work


def _run(work: SweepWork, workers: int, engine: str) -> Records:
    from mmspec.evaluate.engine.work import run_work

    tasks = len(work.draws(work.known()))
    with step_progress(f"evaluate {work.plan.folder}", tasks, 2) as (on_task, on_part):

        def on_stage(name: str, count: int) -> None:
            on_part(f"{name}: {count} tasks" if count else f"{name}: nothing is missing")

        return run_work(work, workers=workers, engine=engine, on_task=on_task, on_stage=on_stage)


def _part(text: str) -> tuple[int, int]:
    at, _, of = text.partition("/")
    if not (at.isdigit() and of.isdigit()):
        raise BadOption(f"--part: expected K/N such as 2/4, got {text!r}, correct it")
    return int(at), int(of)


def _exports(given: Several) -> list[tuple[str, Path]]:
    """(kind, folder) pairs; the folders need not exist."""
    from mmspec.evaluate.exports import LAYOUTS

    found = []
    for text in given or ():
        kind, _, folder = text.partition("=")
        if kind not in LAYOUTS or not folder:
            raise BadOption(
                f"--export: expected {' or '.join(f'{one}=DIR' for one in LAYOUTS)}, got {text!r}, correct it"
            )
        found.append((kind, Path(folder)))
    return found
