"""`mmspec image`: pictures of prompts in a PNG file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, save_json, say
from mmspec.cli.image_models import image_resources
from mmspec.cli.options import (
    PIPELINE,
    check_filters,
    check_left_out,
    check_range,
    drafted_by,
    drawn_seed,
    judged,
    listed,
    placement_of,
    refuse_unreadable,
)
from mmspec.cli.pipelines import IMAGE_EXAMPLE, OpenedPipeline, open_continuous, open_discrete, warn_of_unknown_words
from mmspec.cli.terminal import say_next
from mmspec.io.validation import LARGEST_SCALE
from mmspec.methods import decoding_with

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.run.placement import Placement

MOST_BARS = 12  # more pictures at once share one bar
MOST_IMAGES = 1024
SHEET_GAP = 2  # pixels between the pictures of a sheet
WINDOWED = ("window", "coupling", "init")  # options that `auto` decides itself
CONTINUOUS = ("draft", "gamma", "tolerance", "num_iter")  # options that only models of continuous tokens have


@command(
    decodings=lambda: listed("image", "decoding", "rule"),
    rules=lambda: listed("image", "rule"),
    masked=lambda: listed("continuous", "decoding", models="masked"),
    causal=lambda: listed("continuous", "decoding", models="causal"),
    vectors=lambda: listed("continuous", "rule"),
    usual=lambda: decoding_with("usual").name,
    judged=lambda: judged("image"),
)
def image(
    prompts: list[str],
    *,
    model: str = "t2i",
    decoding: str | None = None,
    rule: str | None = None,
    window: str | None = None,
    coupling: str | None = None,
    init: str | None = None,
    drafter: str | None = None,
    upsampler: str | None = None,
    draft: str | None = None,
    gamma: int | None = None,
    tolerance: float | None = None,
    num_iter: int | None = None,
    guidance: float | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    filter_order: str = "top_k_first",
    seed: int | None = None,
    out: Path = Path("image.png"),
    grid: int | None = None,
    batch: int = 16,
    device: str = "auto",
    dtype: str = "auto",
    json: Path | None = None,
) -> None:
    """Draw pictures of prompts in fewer passes of the model, exactly unless you ask for a relaxed method.

    The zoo's model draws small shapes of its own world: name a colour and a shape, and perhaps a size, a place and a
    background.

    Args:
        prompts (PROMPT): Text of a picture; of models of classes a label or a class name.
        model (NAME): Model: t2i, c2i, mar or car of the zoo, a folder with a saved pipeline, or the folder or hub id of a
            transformers model that draws (`mmspec supported image`).
        decoding (NAME): Decoding: {decodings}. Settings follow a colon: sjd:window=64. For mar: {masked}; for car: {causal}.
            When left out, {usual} for sampled values, so that a seed gives its picture again, and auto for greedy values; ar
            for other models.
        rule (NAME): Acceptance rule: {rules}. Settings follow a colon: lantern:delta=0.2,k=100. For car: {vectors}.
        window (N): Draft length: values per pass; for cspd patch or truncate, for head states per call.
        coupling (NAME): Coupling of draft and target samples: gumbel or maximal.
        init (NAME): First drafts of a window: left, up, mix, random, repeat_left and others of `mmspec methods scd`.
        drafter (NAME): Decoding whose drafts a relaxed rule accepts or rejects: {judged}.
        upsampler (NAME): Upsampler of mulo: pixels or learned.
        draft (FOLDER): Folder of the smaller pipeline that drafts for cspd and small.
        gamma (N): Draft length of cspd, stack and small: steps or tokens.
        tolerance (D): Distance from the target's values that cspd accepts; 0 is exact.
        num_iter (N): Steps of mar over a picture.
        guidance (S): Guidance scale; the model's own when left out.
        temperature (T): 0 takes the most probable value; above 0 samples.
        top_k (K): Number of values to sample from, 0 for all; the model's own when left out.
        top_p (P): Probability mass to sample from, 1 for all.
        filter_order (NAME): Order of the filters: top_k_first as in transformers, or top_p_first as in LANTERN's code.
        seed (N): Seed of the first image; image i has seed + i. Drawn and printed when left out.
        out (FILE): PNG file to write.
        grid (N): Number of images on one sheet; the prompts repeat.
        batch (N): Images drawn at once. Windows of 32 are faster at 1 (2.0 to 2.6 times plain decoding on two cores) and
            slower at 8 and above (0.7 to 0.8 times); auto drafts only where that is faster.

    Examples:
        mmspec image "a large red star on a navy background" --seed 0 --out star.png
        mmspec image "a large red star on a navy background" --grid 4 --batch 1 --out stars.png
        mmspec image "red heart" --model mar --decoding head --out heart.png
    """
    if not all(prompt.strip() for prompt in prompts):
        raise BadOption("PROMPT: expected a text, got an empty one, say what to draw")
    check_range(0, temperature=temperature, top_k=top_k, seed=seed, tolerance=tolerance)
    check_range(0, LARGEST_SCALE, guidance=guidance)
    check_range(1, grid=grid, batch=batch, gamma=gamma, num_iter=num_iter)
    check_filters(top_p, filter_order)
    _check_files(len(prompts), grid, out)
    check_writable(out, json)
    placement = placement_of(device, dtype)
    options = {"rule": rule, "window": window, "coupling": coupling, "init": init, "drafter": drafter,
               "upsampler": upsampler, "draft": draft, "gamma": gamma, "tolerance": tolerance, "num_iter": num_iter,
               "guidance": guidance, "temperature": temperature, "top_k": top_k, "top_p": top_p,
               "filter_order": filter_order}  # fmt: skip
    opened, decoding = _open(model, decoding, options, placement)
    wanted = _conditions(opened, prompts)
    count, seed = grid or len(prompts), drawn_seed(seed)
    wanted, texts = ([part[i % len(part)] for i in range(count)] for part in (wanted, prompts))
    pictures, figures, errors = _generate(opened, wanted, seed, batch)
    drawn = len(errors) < count
    record = {
        "prompts": texts,
        "model": opened.resources.name,
        "decoding": decoding,
        "seed": seed,
        **opened.settings,
        "batch": batch,
        "out": str(out) if drawn else None,
        **figures,
        "errors": errors,
    }
    if drawn:
        _save(pictures, out)
        _print(record)
    save_json(json, record)
    if errors:
        raise ValueError("; ".join(f"image {number}: {text}" for number, text in errors.items()))
    say_next(
        _plain_command(prompts, model, seed) if decoding != "ar" else "mmspec methods --domain image --kind decoding"
    )


def _plain_command(prompts: Sequence[str], model: str, seed: int) -> str:
    """Return the command that draws the same prompts plainly, to compare the passes and the seconds."""
    import shlex

    named = [] if model == "t2i" else ["--model", model]
    words = ["mmspec", "image", *prompts, *named, "--decoding", "ar", "--seed", str(seed), "--out", "plain.png"]
    return f"{shlex.join(words)}  (to compare)"


def _conditions(opened: OpenedPipeline, prompts: Sequence[str]) -> list:
    """Return the prompts as the pipeline takes them; warn of words that it does not know."""
    example = IMAGE_EXAMPLE if opened.resources.zoo else ""
    try:
        conditions = opened.resources.pipeline_prompts(prompts)
    except ValueError as error:
        advice = f'; a prompt that works: "{example}"' if example and "expected words" in str(error) else ""
        raise BadOption(f"{error}{advice}") from error
    warn_of_unknown_words(opened.resources.pipeline, conditions, example)
    return conditions


def _check_files(prompts: int, grid: int | None, out: Path) -> None:
    if max(grid or 0, prompts) > MOST_IMAGES:
        raise BadOption(f"--grid: expected at most {MOST_IMAGES} images, got {max(grid or 0, prompts)}, lower it")
    if grid is not None and grid < prompts:
        raise BadOption(f"--grid: expected at least {prompts} images (the prompts), got {grid}, raise it")
    if out.suffix.lower() != ".png":
        raise BadOption(f"--out: expected a file that ends in .png, got {str(out)!r}, rename it")


def _open(
    model: str, decoding: str | None, options: dict[str, Any], placement: Placement
) -> tuple[OpenedPipeline, str]:
    """Open the pipeline; return it with the name of its decoding."""
    from mmspec.run.model_kinds import is_continuous

    with refuse_unreadable(model, PIPELINE):
        continuous = is_continuous(model)
    if continuous:  # no drafter of continuous tokens is known to be faster
        decoding = "ar" if decoding in (None, "auto") else decoding
        return open_continuous(model, decoding, options, placement), decoding
    # the sampled values of a seed depend on where drafts end: only windows of a fixed length give them again
    is_windowed = options["temperature"] > 0 or any(options[name] is not None for name in WINDOWED)
    decoding = decoding or (decoding_with("usual").name if is_windowed else "auto")
    check_left_out({name: options[name] for name in CONTINUOUS}, f"a model of continuous tokens, got {model!r}")
    load = partial(image_resources, dtype=placement.dtype)
    return open_discrete(model, decoding, options, load, "image", placement), decoding


def _generate(
    opened: OpenedPipeline, wanted: list, seed: int, batch: int
) -> tuple[list[Image | None], dict, dict[int, str]]:
    """Draw all prompts; return their pictures (None for a failed prompt), their figures, and the errors by number."""
    from time import perf_counter

    from mmspec.core.round.rules.base import UnsupportedCombination
    from mmspec.run.timed_run import figures_of

    pictures, stats, errors = [], [], {}
    began = perf_counter()
    for start in range(0, len(wanted), batch):
        part = wanted[start : start + batch]
        with _bars(len(part), opened, start, len(wanted)) as listener:
            try:
                seeds = [seed + start + i for i in range(len(part))]
                out = opened.resources.pipeline(part, seed=seeds, listener=listener, **opened.arguments)
            except UnsupportedCombination as error:
                raise BadOption(f"--rule: {str(error).removeprefix('rule: ')}") from error
        errors |= {start + row: text.removeprefix(f"row {row}: ") for row, text in out.errors.items()}
        pictures += out.images
        stats.append(out.stats)
    figures = figures_of(stats, perf_counter() - began, errors)
    return pictures, figures | {"plain_passes": float(opened.passes)}, errors


@contextmanager
def _bars(images: int, opened: OpenedPipeline, start: int, of: int) -> Iterator[Callable[[int, int], None]]:
    """Yield a listener that moves a bar for each picture, or one bar for many pictures, by finished rows of tokens."""
    rows, done, apart = opened.total // opened.stride, [0] * images, images <= MOST_BARS
    titles = [f"picture {start + i + 1} of {of}, rows" for i in range(images)]
    if not apart:
        titles = [f"pictures {start + 1} to {start + images} of {of}, rows"]
    with progress() as bar:
        tasks = [bar.add_task(title, total=rows if apart else rows * images) for title in titles]

        def listen(row: int, filled: int) -> None:
            if filled // opened.stride != done[row]:
                done[row] = filled // opened.stride
                bar.update(tasks[row if apart else 0], completed=done[row] if apart else sum(done))

        yield listen


def _save(pictures: Sequence[Image | None], out: Path) -> None:
    """Write pictures of one size row by row on a sheet that is about square; the places of failed pictures stay white."""
    from PIL import Image

    from mmspec.io.files import replacing

    sheet = pictures[0]
    if len(pictures) > 1:
        columns = math.ceil(math.sqrt(len(pictures)))
        width, height = (side + SHEET_GAP for side in next(picture.size for picture in pictures if picture is not None))
        size = columns * width - SHEET_GAP, math.ceil(len(pictures) / columns) * height - SHEET_GAP
        sheet = Image.new("RGB", size, "white")
        for number, picture in enumerate(pictures):
            if picture is not None:
                sheet.paste(picture, (number % columns * width, number // columns * height))
    with replacing(out) as temporary:
        sheet.save(temporary)


def _print(record: dict[str, Any]) -> None:
    labels = {"top_k": "top-k", "num_iter": "steps"}  # settings that only some models have
    more = "".join(f"{label} {record[name]}, " for name, label in labels.items() if name in record)
    pictures = f"{record['images']} {'picture' if record['images'] == 1 else 'pictures'}"
    say(
        f"{record['out']}: {pictures} in {record['seconds']} s, {record['target_passes']:g} target passes each instead of "
        f"{record['plain_passes']:g} ({record['step_compression']} values a pass)"
    )
    say(
        f"{drafted_by(record)}, guidance {record['guidance']}, "
        f"temperature {record['temperature']:g}, {more}seed {record['seed']}; {record['model']}",
        "dim",
    )
