"""`mmspec image`: prompts in, one PNG out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, quiet_transformers, refusing, save_json, say
from mmspec.cli.options import (
    PIPELINE,
    check_filters,
    check_left_out,
    check_range,
    drawn_seed,
    judged,
    listed,
    refuse_unreadable,
    rule_of,
)
from mmspec.cli.pipelines import OpenedPipeline, open_continuous, open_discrete
from mmspec.io.validation import LARGEST_SCALE
from mmspec.methods import decoding_with

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.evaluate.image.resources import ImageResources

MOST_BARS = 12  # more pictures at once share one bar
MOST_IMAGES = 1024
SHEET_GAP = 2  # pixels between the pictures of a sheet
WINDOWED = ("window", "coupling", "init")  # `auto` decides these itself
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
    prompts: list[str], *, model: str = "t2i", decoding: str | None = None, rule: str | None = None,
    window: str | None = None, coupling: str | None = None, init: str | None = None, drafter: str | None = None,
    upsampler: str | None = None, draft: str | None = None, gamma: int | None = None, tolerance: float | None = None,
    num_iter: int | None = None, guidance: float | None = None, temperature: float = 1.0, top_k: int | None = None,
    top_p: float = 1.0, filter_order: str = "top_k_first", seed: int | None = None, out: Path = Path("image.png"),
    grid: int | None = None, batch: int = 16, json: Path | None = None,
) -> None:  # fmt: skip
    """Draw pictures of prompts with drafted decoding.

    Args:
        prompts (PROMPT): A text, or a label or class name.
        model: The zoo's t2i, c2i, mar or car, or a folder with a saved pipeline.
        decoding: {decodings}; settings behind a colon: sjd:window=64. Of mar: {masked}; of car: {causal}. When left out auto,
            and {usual} where values are sampled, so that a seed gives its picture again; ar of others.
        rule: {rules}; settings behind a colon: lantern:delta=0.2,k=100. Of car: {vectors}.
        window (N): Values a pass; of cspd patch or truncate, of head states a call.
        coupling: gumbel or maximal.
        init: First drafts: left, up, mix, random, repeat_left...
        drafter: Whose drafts a relaxed rule judges: {judged}.
        upsampler: Of mulo: pixels or learned.
        draft (FOLDER): The smaller pipeline that cspd and small draft with.
        gamma (N): Steps or tokens that cspd, stack and small draft.
        tolerance (D): Of cspd: how far drafts may be from what is drawn; 0 is exact.
        num_iter (N): Of mar: steps over a picture.
        guidance (S): Guidance scale; the model's own when left out.
        temperature: 0 takes the most probable value; above 0 samples.
        top_k (K): 0 for all; the model's own when left out.
        top_p (P): 1 for all.
        filter_order: top_k_first as in transformers, or top_p_first as in LANTERN's code.
        seed: Image i has seed + i; drawn and printed when left out.
        out (FILE): The PNG to write.
        grid (N): N images side by side; prompts come round.
        batch (N): Images generated at once. Windows of 32 pay at 1 (2.0 to 2.6 times plain decoding on two cores), not at 8
            and above (0.7 to 0.8 times); auto drafts what pays.
    """
    if not all(prompt.strip() for prompt in prompts):
        raise BadOption("PROMPT: expected a text, got an empty one, say what to draw")
    check_range(0, temperature=temperature, top_k=top_k, seed=seed, tolerance=tolerance)
    check_range(0, LARGEST_SCALE, guidance=guidance)
    check_range(1, grid=grid, batch=batch, gamma=gamma, num_iter=num_iter)
    check_filters(top_p, filter_order)
    _check_files(len(prompts), grid, out)
    check_writable(out, json)
    options = {"rule": rule, "window": window, "coupling": coupling, "init": init, "drafter": drafter,
               "upsampler": upsampler, "draft": draft, "gamma": gamma, "tolerance": tolerance, "num_iter": num_iter,
               "guidance": guidance, "temperature": temperature, "top_k": top_k, "top_p": top_p,
               "filter_order": filter_order}  # fmt: skip
    opened, decoding = _open(model, decoding, options)
    with refusing():
        wanted = opened.resources.pipeline_prompts(prompts)
    count, seed = grid or len(prompts), drawn_seed(seed)
    wanted, texts = ([part[i % len(part)] for i in range(count)] for part in (wanted, prompts))
    pictures, figures, errors = _generate(opened, wanted, seed, batch)
    drawn = len(errors) < count
    record = {"prompts": texts, "model": opened.resources.name, "decoding": decoding, "seed": seed, **opened.settings,
              "batch": batch, "out": str(out) if drawn else None, **figures, "errors": errors}  # fmt: skip
    if drawn:
        _save(pictures, out)
        _print(record)
    save_json(json, record)
    if errors:
        raise ValueError("; ".join(f"image {number}: {text}" for number, text in errors.items()))


def _check_files(prompts: int, grid: int | None, out: Path) -> None:
    """Refuses too many images, a grid with less than the prompts, and files that are no PNG."""
    if max(grid or 0, prompts) > MOST_IMAGES:
        raise BadOption(f"--grid: expected at most {MOST_IMAGES} images, got {max(grid or 0, prompts)}, lower it")
    if grid is not None and grid < prompts:
        raise BadOption(f"--grid: expected at least {prompts} images (the prompts), got {grid}, raise it")
    if out.suffix.lower() != ".png":
        raise BadOption(f"--out: expected a file that ends in .png, got {str(out)!r}, rename it")


def _open(model: str, decoding: str | None, options: dict[str, Any]) -> tuple[OpenedPipeline, str]:
    """What draws, and the name of its decoding."""
    from mmspec.evaluate.model_kinds import is_continuous

    with refuse_unreadable(model, PIPELINE):
        continuous = is_continuous(model)
    if continuous:  # no drafter of continuous tokens is known to pay
        decoding = "ar" if decoding in (None, "auto") else decoding
        return open_continuous(model, decoding, options), decoding
    # what is sampled with a seed depends on where drafts end: windows of one length give it again
    is_windowed = options["temperature"] > 0 or any(options[name] is not None for name in WINDOWED)
    decoding = decoding or (decoding_with("usual").name if is_windowed else "auto")
    check_left_out({name: options[name] for name in CONTINUOUS}, f"a model of continuous tokens, got {model!r}")
    return open_discrete(model, decoding, options, _image_resources, "image"), decoding


def _image_resources(model: str) -> ImageResources:
    """Load a model of pictures. A model of videos is refused."""
    from mmspec.evaluate.image.resources import folder_resources, zoo_resources
    from mmspec.evaluate.model_kinds import IMAGE_MODELS

    if model in IMAGE_MODELS:
        return zoo_resources(model)
    if not Path(model).is_dir():
        zoo = ", ".join(IMAGE_MODELS)
        raise BadOption(f"--model: expected one of {zoo} or {PIPELINE}, got {model!r}, correct it")
    quiet_transformers()
    with refuse_unreadable(model, PIPELINE):
        resources = folder_resources(Path(model))
    frames = resources.pipeline.model.geometry.frames
    if frames > 1:
        raise BadOption(f"--model: expected a model of pictures, got {model!r}, which draws {frames} frames, call "
                        "`mmspec video`")  # fmt: skip
    return resources


def _generate(
    opened: OpenedPipeline, wanted: list, seed: int, batch: int
) -> tuple[list[Image | None], dict, dict[int, str]]:
    """The pictures of all prompts, None for a failed one; what they cost; and by number why one failed."""
    from time import perf_counter

    from mmspec.core.rules.base import UnsupportedCombination
    from mmspec.evaluate.image.figures import figures_of

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
    """A listener that shows how many rows of tokens each picture has; of many pictures how many they have together."""
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
    """Writes pictures of one size, row by row on a sheet about as wide as it is high; the place of None stays white."""
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
    named = {"top_k": "top-k", "num_iter": "steps"}  # settings that only some models have
    more = "".join(f"{shown} {record[name]}, " for name, shown in named.items() if name in record)
    say(
        f"{record['out']}: {record['images']} {'picture' if record['images'] == 1 else 'pictures'} in {record['seconds']} s, "
        f"{record['target_passes']:g} target passes each instead of {record['plain_passes']:g} "
        f"({record['step_compression']} values a pass), {record['drafter']}, rule {rule_of(record)}, "
        f"guidance {record['guidance']}, temperature {record['temperature']:g}, {more}seed {record['seed']}; "
        f"{record['model']}"
    )  # fmt: skip
