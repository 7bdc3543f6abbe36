"""`mmspec evaluate`: a grid of models, decodings and rules over a prompt set, with speed and quality."""

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
from mmspec.cli.terminal import say_next
from mmspec.io.validation import LARGEST_SCALE

if TYPE_CHECKING:
    from mmspec.evaluate.engine.plan import SweepPlan
    from mmspec.evaluate.engine.shards import Records
    from mmspec.evaluate.engine.work import SweepWork


@command()
def evaluate(
    run: Path,
    *,
    model: list[str] | None = None,
    decoding: list[str] | None = None,
    rule: list[str] | None = None,
    temperature: str | None = None,
    prompts: str = "zoo",
    pictures: Path | None = None,
    count: int = 32,
    samples: int = 1,
    seed: int = 0,
    extractor: str = "zoo",
    reward: str = "",
    reference: Path | None = None,
    guidance: float | None = None,
    top_k: int | None = None,
    num_iter: int | None = None,
    max_new_tokens: int | None = None,
    blocks: int | None = None,
    workers: int = 1,
    engine: str = "local",
    part: str = "1/1",
    threads: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    export: list[str] | None = None,
    report: bool = True,
    json: Path | None = None,
) -> None:
    """Run models under decodings and rules on the same prompts, and report their speed and the quality of their output.

    A run is a folder of JSONL shards and output files. The same command continues a killed run; the parts of other
    processes and machines are merged by copying their shards and media into one folder.

    Args:
        run (RUN): Folder of the run; created, or continued where it exists.
        model (NAME): Model: of the zoo, such as vlm, t2i or car, or vlm|image|continuous|video=FOLDER with a saved model; may
            be repeated. All models of the zoo when left out.
        decoding (NAME): Decoding with its settings, such as sjd:window=32 or eagle:length=7, or the key of a bench's row;
            may be repeated. When left out, a few of every model's own. Plain decoding is always included.
        rule (NAME): Acceptance rule for every decoding: exact, block, lantern:delta=0.2,k=64 and others; may be repeated.
        temperature (T,T): Temperatures, separated by commas.
        prompts (SET): Prompt set: zoo, coco=FILE, imagenet=FILE, folder=DIR, texts=DIR, jsonl=FILE, or mmspec=DIR for the
            public benchmark of that name.
        pictures (DIR): Folder of the pictures of coco or jsonl.
        count (N): Prompts per model.
        samples (N): Samples per prompt and method.
        seed (N): Seed of the samples and of the zoo's prompts.
        extractor (NAME): Feature extractor of pictures: zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER.
        reward (NAME): Additional scorer of pictures and videos: zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or
            pickscore=FILE.
        reference (DIR): Folder of real pictures for distances; the pictures of the prompt set when left out.
        guidance (S): Pictures: guidance scale.
        top_k (K): Discrete images: number of values to sample from, 0 for all.
        num_iter (N): Masked models: steps over a picture.
        max_new_tokens (N): Texts: longest answer in tokens.
        blocks (N): Videos: number of blocks.
        workers (N): Worker processes, or actors of Ray. Several workers disturb the timings of one another.
        engine (NAME): Engine that runs the workers: local or ray.
        part (K/N): The K-th of N parts of the work, for N machines.
        threads (N): Threads of torch in every worker; torch's own number when left out.
        export (KIND=DIR): Also write the output in the layout of geneval, dpg or vbench; may be repeated.
        report (--report/--no-report): Write tables and plots into RUN/report once every sample is there.

    Examples:
        mmspec evaluate runs/zoo --count 160
        mmspec evaluate runs/images --model t2i --decoding scd --decoding sjd:window=32 --rule exact
        mmspec report runs/zoo
    """
    check_writable(json)
    check_range(0, LARGEST_SCALE, guidance=guidance)
    exports = _exports(export)
    with spinner("reading the plan"):
        quiet_transformers()
        with refusing():
            temperatures = split_numbers("--temperature", temperature, float)
            for value in temperatures or ():
                check_range(0, temperature=value)
            overrides = {"guidance": guidance, "top_k": top_k, "num_iter": num_iter, "new_tokens": max_new_tokens,
                      "blocks": blocks}  # fmt: skip
            several = dict(models=model, decodings=decoding, rules=rule, temperatures=temperatures)
            plan = _plan(
                run,
                overrides,
                several,
                prompts=prompts,
                pictures=pictures,
                count=count,
                reward=reward,
                samples=samples,
                seed=seed,
                extractor=extractor,
                reference=reference,
                threads=threads,
                device=device,
                dtype=dtype,
                part=_part(part),
            )
            work = _checked(plan, engine, workers, report)
    records = _run(work, workers, engine)
    for kind, folder in exports:
        from mmspec.evaluate.exports import export_run

        say(export_run(kind, records, folder))
    missing = work.missing(records)
    if missing:
        say(f"{run}: {missing} samples of other parts are missing, the report waits for them")
    elif report:
        save_json(json, show_report(records, work.plan.folder / "report", plots=True))
        say_next(f"mmspec web --runs {work.plan.folder.parent}")


def _plan(run: Path, overrides: dict, several: dict, **fields: object) -> SweepPlan:
    from mmspec.evaluate.base.media import run_folder
    from mmspec.evaluate.engine.domain import SamplingOverrides
    from mmspec.evaluate.engine.plan import SweepPlan

    fields |= {name: tuple(value or ()) for name, value in several.items()}
    return SweepPlan(folder=run_folder(run), wishes=SamplingOverrides(**overrides), **fields)


def _checked(plan: SweepPlan, engine: str, workers: int, report: bool) -> SweepWork:
    """Return the work of a plan whose engine, plots and samples can run to the end."""
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


def _exports(texts: list[str] | None) -> list[tuple[str, Path]]:
    """Return the kinds and folders of --export; the folders need not exist."""
    from mmspec.evaluate.exports import LAYOUTS

    forms = " or ".join(f"{layout}=DIR" for layout in LAYOUTS)
    pairs = split_pairs("--export", texts, forms, "correct it", lambda kind, _: kind in LAYOUTS)
    return [(kind, Path(folder)) for kind, folder in pairs]
