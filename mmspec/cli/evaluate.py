"""`mmspec evaluate`: a grid of models, decodings and rules over a prompt set, kept and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.command import command
from mmspec.cli.console import (
    BadOption,
    check_writable,
    quiet_transformers,
    refusing,
    save_json,
    say,
    spinner,
    step_progress,
)
from mmspec.cli.options import check_range, split_numbers, split_pairs
from mmspec.cli.report import need_plots, show_report
from mmspec.io.validation import LARGEST_SCALE

if TYPE_CHECKING:
    from mmspec.evaluate.engine.plan import SweepPlan
    from mmspec.evaluate.engine.shards import Records
    from mmspec.evaluate.engine.work import SweepWork


@command()
def evaluate(
    run: Path, *, model: list[str] | None = None, decoding: list[str] | None = None, rule: list[str] | None = None,
    temperature: str | None = None, prompts: str = "zoo", pictures: Path | None = None, count: int = 32, samples: int = 1,
    seed: int = 0, extractor: str = "zoo", reward: str = "", reference: Path | None = None, guidance: float | None = None,
    top_k: int | None = None, num_iter: int | None = None, max_new_tokens: int | None = None, blocks: int | None = None,
    workers: int = 1, engine: str = "local", part: str = "1/1", threads: int | None = None,
    export: list[str] | None = None, report: bool = True, json: Path | None = None,
) -> None:  # fmt: skip
    """Run every model under every decoding and rule on the same prompts; keep what is made, its speed and its quality.

    A run is a folder of JSONL shards and what was made. The same command goes on where it was killed; parts of other
    processes and machines are merged by copying their shards and media into one folder.

    Args:
        run (RUN): The run's folder; made where there is none, gone on with where there is.
        model (NAME): Of the zoo, such as vlm, t2i, car; or vlm|image|continuous|video=FOLDER with a saved model. May be
            repeated; all that the zoo has when left out.
        decoding (NAME): With settings: sjd:window=32, eagle:length=7; or the key of a bench's row. May be repeated; a few of
            every model's own when left out. Plain decoding is always there.
        rule (NAME): Every decoding is run under it: exact, block, lantern:delta=0.2,k=64... May be repeated.
        temperature (T,T): Temperatures.
        prompts (SET): zoo, coco=FILE, imagenet=FILE, folder=DIR, texts=DIR, jsonl=FILE, or mmspec=DIR, the public benchmark
            of that name.
        pictures (DIR): The pictures of coco or jsonl.
        count (N): Prompts of every model.
        samples (N): Samples of every prompt and method.
        seed: Of the samples, and of the zoo's prompts.
        extractor (NAME): What reads pictures: zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER.
        reward (NAME): What else scores pictures and films: zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or pickscore=FILE.
        reference (DIR): Real pictures that drawn ones are held against; those of the prompt set when left out.
        guidance (S): Of pictures: guidance scale.
        top_k (K): Of images of discrete tokens; 0 for all.
        num_iter (N): Of masked models: steps over a picture.
        max_new_tokens (N): Of texts.
        blocks (N): Of videos.
        workers (N): Processes, or Ray's actors. More than one disturb one another's timings.
        engine: local or ray.
        part (K/N): The K-th of N parts of the work, for N machines.
        threads (N): Threads torch computes with, in every worker; as torch is set when left out.
        export (KIND=DIR): Also write what was made as geneval, dpg or vbench read it; may be repeated.
        report: Write tables and plots into RUN/report when all is there.
    """
    check_writable(json)
    check_range(0, LARGEST_SCALE, guidance=guidance)
    exports = _exports(export)
    with spinner("reading the plan"):
        quiet_transformers()
        with refusing():
            temperatures = split_numbers("--temperature", temperature, float)
            for one in temperatures or ():
                check_range(0, temperature=one)
            wished = {"guidance": guidance, "top_k": top_k, "num_iter": num_iter, "new_tokens": max_new_tokens,
                      "blocks": blocks}  # fmt: skip
            several = dict(models=model, decodings=decoding, rules=rule, temperatures=temperatures)
            plan = _plan(run, wished, several, prompts=prompts, pictures=pictures, count=count, reward=reward,
                         samples=samples, seed=seed, extractor=extractor, reference=reference, threads=threads,
                         part=_part(part))  # fmt: skip
            work = _checked(plan, engine, workers, report)
    found = _run(work, workers, engine)
    for kind, folder in exports:
        from mmspec.evaluate.exports import export_run

        say(export_run(kind, found, folder))
    missing = work.missing(found)
    if missing:
        say(f"{run}: {missing} samples of other parts are missing, the report waits for them")
    elif report:
        save_json(json, show_report(found, work.plan.folder / "report", plots=True))


def _plan(run: Path, wished: dict, several: dict, **given: object) -> SweepPlan:
    from mmspec.evaluate.engine.domain import SamplingOverrides
    from mmspec.evaluate.engine.media import run_folder
    from mmspec.evaluate.engine.plan import SweepPlan

    given |= {name: tuple(value or ()) for name, value in several.items()}
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

    tasks = work.expected_tasks(work.known())
    with step_progress(f"evaluate {work.plan.folder}", tasks, 2) as (on_task, on_part):

        def on_stage(name: str, count: int) -> None:
            on_part(f"{name}: {count} tasks" if count else f"{name}: nothing is missing")

        return run_work(work, workers=workers, engine=engine, on_task=on_task, on_stage=on_stage)


def _part(text: str) -> tuple[int, int]:
    at, _, of = text.partition("/")
    if not (at.isdigit() and of.isdigit()):
        raise BadOption(f"--part: expected K/N such as 2/4, got {text!r}, correct it")
    return int(at), int(of)


def _exports(given: list[str] | None) -> list[tuple[str, Path]]:
    """(kind, folder) pairs; the folders need not exist."""
    from mmspec.evaluate.exports import LAYOUTS

    forms = " or ".join(f"{one}=DIR" for one in LAYOUTS)
    pairs = split_pairs("--export", given, forms, "correct it", lambda kind, _: kind in LAYOUTS)
    return [(kind, Path(folder)) for kind, folder in pairs]
