"""`mmspec train`: drafters for a model of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.console import BadOption, check_writable, progress, refusing, reports_errors, save_json, screen
from mmspec.cli.options import ZOO, Json, check_at_least, is_of_zoo, open_resources
from mmspec.cli.train_options import check_sizes, data_of, device_of, job_of, licence_of, own_prompts_of, sizes_of
from mmspec.vlm.drafters.kinds import trained_kinds

if TYPE_CHECKING:
    from mmspec.evaluate.vlm.resources import VlmResources
    from mmspec.vlm.training.data import TrainingData
    from mmspec.vlm.training.job import Job

app = typer.Typer(help="Train drafters.", no_args_is_help=True)
_KINDS = trained_kinds()
_ANSWERS, _TEACHERS, _DEVICES = ("own", "given"), ("online", "offline"), ("auto", "cpu", "cuda")


@app.callback()
def _root() -> None:
    """Train drafters."""


@app.command("vlm-drafter")
@reports_errors
def vlm_drafter(
    out: Annotated[
        Path, typer.Option(help="Folder for the drafter, its card and, in work/, what a resumed run needs.")
    ],
    kind: Annotated[
        str,
        typer.Option(help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}."),
    ],
    target: Annotated[
        str, typer.Option(help="'zoo', 'vlm/smol', a folder, or a hub id 'owner/name' (downloads it).")
    ] = ZOO,
    data: Annotated[
        str,
        typer.Option(
            help="'zoo', a JSONL file (a text, a list of image files, maybe an answer on every line), or own:N: the target "
            "writes N prompts itself (chat models of text)."
        ),
    ] = ZOO,
    texts: Annotated[Path | None, typer.Option(help="A JSONL file of more examples, without images.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A field of the kind's config, such as latents=16.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 800,
    batch: Annotated[int, typer.Option(help="Examples a step, in every process.")] = 12,
    recipe: Annotated[
        str,
        typer.Option(help="equal (ours, the same for all kinds), published (the kind's own), or another's name."),
    ] = "equal",
    lr: Annotated[float | None, typer.Option(help="Peak learning rate instead of the recipe's.")] = None,
    loss: Annotated[str | None, typer.Option(help="Terms instead of the recipe's, such as l1:10,list_mle:0.1.")] = None,
    answers: Annotated[
        str | None, typer.Option(help="own: the target answers itself; given: those of the data.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="online: live; offline: its states are stored on disk first.")
    ] = None,
    new_tokens: Annotated[int, typer.Option(metavar="N", help="Longest own answer in tokens.")] = 128,
    longest: Annotated[int | None, typer.Option(metavar="N", help="Cut rows to so many tokens.")] = None,
    start: Annotated[Path | None, typer.Option(help="Folder of a drafter to start from.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Folder of a drafter: train only on tokens it is much better at (AdaSPEC).")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the tokens trained on with --reference.")] = 0.4,
    held_out: Annotated[int, typer.Option(metavar="N", help="Examples kept to measure acceptance on.")] = 8,
    eval_every: Annotated[int | None, typer.Option(metavar="N", help="Steps between measurements, 0 for none.")] = None,
    precision: Annotated[str, typer.Option(help="bf16 (autocast) or no, which is faster on most CPUs.")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, order and sampled answers.")] = 0,
    licence: Annotated[
        str | None, typer.Option(help="The target's, for the card; read from its folder if left out.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on where a killed run was, or start over.")
    ] = True,
    json: Json = None,
) -> None:
    """Train a drafter for a vision-language model, on its own answers, with acceptance measured on the way.

    On several GPUs: accelerate launch "$(which mmspec)" train vlm-drafter ...
    """
    for name, value, least in (("--steps", steps, 1), ("--batch", batch, 1), ("--new-tokens", new_tokens, 1),
                               ("--held-out", held_out, 0), ("--eval-every", eval_every or 0, 0), ("--seed", seed, 0),
                               ("--longest", 8 if longest is None else longest, 8)):  # fmt: skip
        check_at_least(name, value, least)
    for name, value, choices in (("--answers", answers, _ANSWERS), ("--teacher", teacher, _TEACHERS),
                                 ("--precision", precision, ("bf16", "no")), ("--device", device, _DEVICES)):  # fmt: skip
        if value is not None and value not in choices:
            raise BadOption(f"{name}: expected one of {', '.join(choices)}, got {value!r}, choose one")
    if lr is not None and not 0 < lr < float("inf"):
        raise BadOption(f"--lr: expected a number above 0, got {lr}, change it")
    check_writable(json)
    if out.exists() and not out.is_dir():
        raise BadOption(f"--out: expected a folder, got the file {str(out)!r}, name another")
    if not out.resolve().parent.is_dir():
        raise BadOption(f"--out: expected an existing folder to make {str(out)!r} in, got none, create it first")
    if data == ZOO and not is_of_zoo(target):
        raise BadOption("--data: expected a file of examples for this target, got none, name a JSONL file")
    job = job_of(
        kind=kind, sizes=sizes_of(size or []), steps=steps, batch=batch, lr=lr, loss=loss, answers=answers,
        recipe=kind if recipe == "published" else recipe, teacher=teacher, new_tokens=new_tokens, longest=longest,
        precision=precision, start=start, reference=reference, share=share, seed=seed,
        eval_every=max(1, steps // 8) if eval_every is None else eval_every,
    )  # fmt: skip
    own = own_prompts_of(data)
    with refusing():
        examples = None if own else data_of(data, texts, held_out, seed)
    resources = open_resources(target, "--target")
    check_sizes(job, resources.model)
    place, tells = device_of(device)
    resources.model.to(place).requires_grad_(False)
    if examples is None:
        file = _own_prompts(resources, own, out / "work" / "prompts.jsonl", seed, tells)
        examples = data_of(str(file), texts, held_out, seed)
    card = _train(job, resources, examples, out, target, licence or licence_of(target), resume, tells)
    if not tells:
        return
    curve = _curve(out)
    _show(card, curve, out)
    save_json(json, {**card, "curve": curve})


def _own_prompts(resources: VlmResources, count: int, file: Path, seed: int, tells: bool) -> Path:
    """The file of the prompts that the target writes: by one process, while the others wait."""
    from mmspec.vlm.training.own_prompts import PromptSettings, write_own_prompts
    from mmspec.vlm.training.run_setup import process_state

    with progress() as bar, process_state(cpu=resources.model.device.type == "cpu").main_process_first(), refusing():
        task = bar.add_task("prompts", total=count, visible=tells)
        write_own_prompts(
            resources.model, resources.processor, count, file, PromptSettings(seed=seed),
            lambda done: bar.update(task, completed=done),
        )  # fmt: skip
    return file


def _train(
    job: Job,
    resources: VlmResources,
    examples: TrainingData,
    out: Path,
    target: str,
    licence: str | None,
    resume: bool,
    tells: bool,
) -> dict[str, Any]:
    from mmspec.io.interrupts import Stopped
    from mmspec.vlm.training.job import run_job

    with progress() as bar:
        tasks: dict[str, Any] = {}
        accept = ""

        def on_progress(phase: str, done: int, total: int, notes: dict[str, float]) -> None:
            nonlocal accept
            if not tells:
                return
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            if "accept_length" in notes:
                accept = f", accept length {notes['accept_length']:.2f}"
            line = f"{phase}: loss {notes['loss']:.3f}{accept}" if "loss" in notes else phase
            bar.update(tasks[phase], completed=done, description=line)

        try:
            return run_job(
                job, resources.model, resources.processor, examples, out, target=target, licence=licence, resume=resume,
                on_progress=on_progress,
            )  # fmt: skip
        except Stopped as stop:
            if tells:
                raise
            raise typer.Exit(128 + stop.signal) from stop  # one of the processes is enough to say so


def _curve(out: Path) -> list[dict]:
    """What was measured on the way: step, seconds of training, accept length."""
    from mmspec.vlm.training.job import read_training_log

    keys = ("step", "seconds", "accept_length")
    return [{key: line[key] for key in keys} for line in read_training_log(out) if "accept_length" in line]


def _show(card: dict[str, Any], curve: list[dict], out: Path) -> None:
    from rich.table import Table

    console = screen()
    size = f"{card['parameters']:,} parameters"
    console.print(f"{card['kind']} for {card['target']}: {size}, written to {out}", markup=False, soft_wrap=True)
    for name, value in card["training"].items():
        console.print(f"  {name}: {value}", markup=False, soft_wrap=True)
    if isinstance(card["curriculum"], str):
        console.print(f"  curriculum: {card['curriculum']}", markup=False, soft_wrap=True)
    if card["vocabulary_share"] < 1:
        console.print(f"  its vocabulary holds {card['vocabulary_share']:.1%} of the answers' tokens", soft_wrap=True)
    if card["states_megabytes"] is not None:
        console.print(f"  stored states: {card['states_megabytes']} MB in {out / 'work' / 'states'}", soft_wrap=True)
    if curve:
        table = Table(title="tokens per target pass on held-out requests, greedy", title_justify="left")
        for head in ("step", "seconds", "accept length"):
            table.add_column(head, justify="right")
        for line in curve:
            table.add_row(str(line["step"]), str(line["seconds"]), f"{line['accept_length']:.3f}")
        console.print(table)
