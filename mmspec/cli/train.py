"""`mmspec train`: drafters for a model of your own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mmspec.cli.command import GroupHelp, LateHelp, command
from mmspec.cli.console import BadOption, check_writable, progress, refusing, save_json, say
from mmspec.cli.options import ZOO, check_choice, check_range, is_of_zoo, open_resources, placement_of
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next
from mmspec.cli.train_options import check_sizes, data_of, device_of, job_of, licence_of, own_prompts_of, sizes_of
from mmspec.vlm.drafters.drafter_names import SMALL, trained_kinds

if TYPE_CHECKING:
    from mmspec.run.vlm_models import VlmResources
    from mmspec.vlm.training.data import TrainingData
    from mmspec.vlm.training.job import Job

app = typer.Typer(cls=GroupHelp, help="Train drafters for a model of yours.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Train drafters.

    Examples:
        mmspec train vlm-drafter --kind msd --out my-msd --steps 200
        mmspec train vlm-drafter --target FOLDER --kind vispec --data requests.jsonl --out my-vispec
    """


@app.command("vlm-drafter", cls=LateHelp)
@command(kinds=lambda: " or ".join(", ".join((*trained_kinds(), SMALL)).rsplit(", ", 1)))
def vlm_drafter(
    *,
    out: Path,
    kind: str,
    target: str = ZOO,
    data: str = ZOO,
    texts: Path | None = None,
    size: list[str] | None = None,
    steps: int = 800,
    batch: int = 12,
    recipe: str = "equal",
    lr: float | None = None,
    loss: str | None = None,
    answers: str | None = None,
    teacher: str | None = None,
    source: str = "target",
    new_tokens: int = 128,
    longest: int | None = None,
    start: Path | None = None,
    reference: Path | None = None,
    share: float = 0.4,
    held_out: int = 8,
    eval_every: int | None = None,
    precision: str = "bf16",
    device: str = "auto",
    seed: int = 0,
    licence: str | None = None,
    resume: bool = True,
    json: Path | None = None,
) -> None:
    """Train a drafter for a vision-language model on its own answers, and measure the acceptance meanwhile.

    On several GPUs: accelerate launch "$(which mmspec)" train vlm-drafter ...

    Args:
        out (FOLDER): Folder for the drafter and its card; work/ in it holds the files that a resumed run needs.
        kind (NAME): Kind of drafter: {kinds}.
        target (NAME): Model that the drafter is for: zoo, vlm/smol, a folder, or a hub id owner/name, which is downloaded.
        data (DATA): Training examples: zoo, a JSONL file (on every line a text or a conversation, image files and perhaps an
            answer), or own:N for N prompts that the target writes itself (chat models of text).
        texts (FILE): JSONL file of more examples, without images.
        size (NAME=VALUE): Field of the kind's config, such as latents=16; may be repeated.
        steps (N): Optimizer steps.
        batch (N): Examples per step, in every process.
        recipe (NAME): Recipe: equal (the same for all kinds), published (the kind's own), or the name of another kind.
        lr (R): Peak learning rate; the recipe's when left out.
        loss (TERMS): Loss terms with their weights, such as l1:10,list_mle:0.1; the recipe's when left out.
        answers (NAME): Answers to train on: own (the target's own) or given (those of the data).
        teacher (NAME): Target states: online computes them in every step, offline stores them on disk first.
        source (SOURCE): Tokens to train on: target (the answers), drafter (its own continuations of them, judged by the
            target), or the drafter's share of the tokens, such as 0.5.
        new_tokens (N): Longest own answer in tokens.
        longest (N): Number of tokens that rows are cut to.
        start (FOLDER): Folder of a drafter to start from, or of the model that --kind small trains.
        reference (FOLDER): Folder of a drafter; only tokens where it is much better are trained on (AdaSPEC).
        share (R): Share of the tokens that are trained on with --reference.
        held_out (N): Held-out examples that measure the acceptance.
        eval_every (N): Steps between measurements, 0 for no measurements.
        precision (NAME): bf16 (autocast) or no, which is faster on most CPUs.
        device (NAME): Device that trains: auto, cpu or cuda; auto takes an available GPU.
        seed (N): Seed of weights, order and sampled answers.
        licence (TEXT): Licence of the target, for the card; read from its folder when left out.
        resume (--resume/--no-resume): Continue a killed run, or start over.

    Examples:
        mmspec train vlm-drafter --kind msd --out my-msd --steps 200
        mmspec train vlm-drafter --target FOLDER --kind vispec --data requests.jsonl --out my-vispec
        mmspec caption scene.png --drafter my-msd
    """
    check_range(1, steps=steps, batch=batch, new_tokens=new_tokens)
    check_range(0, held_out=held_out, eval_every=eval_every, seed=seed)
    check_range(8, longest=longest)
    check_choice(("own", "given"), answers=answers)
    check_choice(("online", "offline"), teacher=teacher)
    check_choice(("bf16", "no"), precision=precision)
    placement_of(device)
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
        kind=kind,
        sizes=sizes_of(size or []),
        steps=steps,
        batch=batch,
        lr=lr,
        loss=loss,
        answers=answers,
        recipe=kind if recipe == "published" else recipe,
        teacher=teacher,
        source=source,
        new_tokens=new_tokens,
        longest=longest,
        precision=precision,
        start=start,
        reference=reference,
        share=share,
        seed=seed,
        eval_every=max(1, steps // 8) if eval_every is None else eval_every,
    )
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
    about = {"target": target, "licence": licence or licence_of(target), "resume": resume}
    card = _train(job, resources, examples, out, about, tells)
    if tells:
        curve = _curve(out)
        _show(card, curve, out)
        save_json(json, {**card, "curve": curve})
        named = "" if target == ZOO else f" --model {target}"
        form = "small@" if kind == SMALL else ""
        say_next(f"mmspec caption IMAGE --drafter {form}{out}{named} --compare")


def _own_prompts(resources: VlmResources, count: int, file: Path, seed: int, tells: bool) -> Path:
    """Return the file of the target's prompts, which the main process writes while the others wait."""
    from mmspec.vlm.training.own_prompts import PromptSettings, write_own_prompts
    from mmspec.vlm.training.run_setup import process_state

    with progress() as bar, process_state(cpu=resources.model.device.type == "cpu").main_process_first(), refusing():
        task = bar.add_task("prompts", total=count, visible=tells)
        write_own_prompts(
            resources.model,
            resources.processor,
            count,
            file,
            PromptSettings(seed=seed),
            lambda done: bar.update(task, completed=done),
        )
    return file


def _train(
    job: Job, resources: VlmResources, examples: TrainingData, out: Path, about: dict[str, Any], tells: bool
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
            return run_job(job, resources.model, resources.processor, examples, out, on_progress=on_progress, **about)
        except Stopped as stop:
            if tells:
                raise
            raise typer.Exit(128 + stop.signal) from stop  # the main process alone prints the sentence


def _curve(out: Path) -> list[dict]:
    """Return the measurements of a run: step, seconds of training, accept length."""
    from mmspec.vlm.training.job import read_training_log

    keys = ("step", "seconds", "accept_length")
    return [{key: line[key] for key in keys} for line in read_training_log(out) if "accept_length" in line]


def _show(card: dict[str, Any], curve: list[dict], out: Path) -> None:
    lines = [f"{card['kind']} for {card['target']}: {card['parameters']:,} parameters, written to {out}"]
    lines += [f"  {name}: {value}" for name, value in card["training"].items()]
    if isinstance(card["curriculum"], str):
        lines.append(f"  curriculum: {card['curriculum']}")
    if card["vocabulary_share"] < 1:
        lines.append(f"  its vocabulary holds {card['vocabulary_share']:.1%} of the answers' tokens")
    if card["states_megabytes"] is not None:
        lines.append(f"  stored states: {card['states_megabytes']} MB in {out / 'work' / 'states'}")
    say("\n".join(lines))
    if curve:
        rows = [(str(line["step"]), str(line["seconds"]), f"{line['accept_length']:.3f}") for line in curve]
        heads = ("step", "seconds", "accept length")
        print_table("tokens per target pass on held-out requests, greedy", heads, rows, right=heads)
