"""`mmspec image`: prompts in, one PNG out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, check_writable, progress, refusing, reports_errors, save_json, screen
from mmspec.cli.image_models import open_continuous_pipeline, open_discrete_pipeline
from mmspec.cli.options import (
    Json,
    check_at_least,
    check_filters,
    check_scale,
    drawn_seed,
    judged,
    listed,
    refuse_unreadable,
)
from mmspec.methods import decoding_with

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.cli.image_models import OpenedPipeline

MOST_BARS = 12  # more pictures at once share one bar
MOST_IMAGES = 1024


@reports_errors
def image(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="A text, or a label or class name.")],
    model: Annotated[
        str, typer.Option(help="The zoo's t2i, c2i, mar or car, or a folder with a saved pipeline.")
    ] = "t2i",
    decoding: Annotated[
        str | None,
        typer.Option(
            help=f"{listed('image', 'decoding', 'rule')}; settings behind a colon: sjd:window=64. Of mar: "
            f"{listed('continuous', 'decoding', models='masked')}; of car: "
            f"{listed('continuous', 'decoding', models='causal')}. When left out auto, and "
            f"{decoding_with('usual').name} where values are sampled, so that a seed gives its picture again; ar of others."
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"{listed('image', 'rule')}; settings behind a colon: lantern:delta=0.2,k=100. Of car: "
            f"{listed('continuous', 'rule')}."
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="N", help="Values a pass; of cspd patch or truncate, of head states a call.")
    ] = None,
    coupling: Annotated[str | None, typer.Option(help="gumbel or maximal.")] = None,
    init: Annotated[str | None, typer.Option(help="First drafts: left, up, mix, random, repeat_left...")] = None,
    drafter: Annotated[str | None, typer.Option(help=f"Whose drafts a relaxed rule judges: {judged('image')}.")] = None,
    upsampler: Annotated[str | None, typer.Option(help="Of mulo: pixels or learned.")] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The smaller pipeline that cspd and small draft with.")
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(metavar="N", help="Steps or tokens that cspd, stack and small draft.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(metavar="D", help="Of cspd: how far drafts may be from what is drawn; 0 is exact.")
    ] = None,
    num_iter: Annotated[int | None, typer.Option(metavar="N", help="Of mar: steps over a picture.")] = None,
    guidance: Annotated[
        float | None, typer.Option(metavar="S", help="Guidance scale; the model's own when left out.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable value; above 0 samples.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="0 for all; the model's own when left out.")] = None,
    top_p: Annotated[float, typer.Option(metavar="P", help="1 for all.")] = 1.0,
    filter_order: Annotated[
        str, typer.Option(help="top_k_first as in transformers, or top_p_first as in LANTERN's code.")
    ] = "top_k_first",
    seed: Annotated[int | None, typer.Option(help="Image i has seed + i; drawn and printed when left out.")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The PNG to write.")] = Path("image.png"),
    grid: Annotated[int | None, typer.Option(metavar="N", help="N images side by side; prompts come round.")] = None,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Images generated at once. Windows of 32 pay at 1 (2.0 to 2.6 times plain decoding on two cores), not at 8 "
            "and above (0.7 to 0.8 times); auto drafts what pays.",
        ),
    ] = 16,
    json: Json = None,
) -> None:
    """Draw pictures of prompts with drafted decoding."""
    _check(prompts, temperature, top_p, filter_order, guidance, top_k, seed, grid, batch, out)
    for flag, value, least in (("--gamma", gamma, 1), ("--tolerance", tolerance, 0), ("--num-iter", num_iter, 1)):
        check_at_least(flag, least if value is None else value, least)
    check_writable(out, json)
    wishes = {"rule": rule, "window": window, "coupling": coupling, "init": init, "drafter": drafter, "upsampler": upsampler,
              "draft": draft, "gamma": gamma, "tolerance": tolerance, "num_iter": num_iter}  # fmt: skip
    settings = {"guidance_scale": guidance, "temperature": temperature, "top_k": top_k, "top_p": top_p,
                "filter_order": filter_order}  # fmt: skip
    opened, decoding = _open(model, decoding, wishes, settings)
    with refusing():
        wanted = opened.given(prompts)
    count = grid or len(prompts)
    wanted, texts = ([part[i % len(part)] for i in range(count)] for part in (wanted, prompts))
    seed = drawn_seed(seed)
    pictures, figures, errors = _generate(opened, wanted, seed, batch)
    drawn = len(errors) < count
    if drawn:
        _save(pictures, out)
    record = {
        "prompts": texts,
        "model": opened.name,
        "decoding": decoding,
        "seed": seed,
        **opened.settings,
        "batch": batch,
        "out": str(out) if drawn else None,
        **figures,
        "errors": errors,
    }
    if drawn:
        _print(record, opened)
    save_json(json, record)
    if errors:
        raise ValueError("; ".join(f"image {number}: {text}" for number, text in errors.items()))


def _check(prompts, temperature, top_p, filter_order, guidance, top_k, seed, grid, batch, out: Path) -> None:
    """Refuses values that no model takes."""
    if not all(prompt.strip() for prompt in prompts):
        raise BadOption("PROMPT: expected a text, got an empty one, say what to draw")
    check_at_least("--temperature", temperature, 0)
    check_scale("--guidance", guidance)
    for name, value, least in (("--top-k", top_k, 0), ("--seed", seed, 0), ("--grid", grid, 1)):
        check_at_least(name, least if value is None else value, least)
    check_at_least("--batch", batch, 1)
    check_filters(top_p, filter_order)
    if max(grid or 0, len(prompts)) > MOST_IMAGES:
        raise BadOption(f"--grid: expected at most {MOST_IMAGES} images, got {max(grid or 0, len(prompts))}, lower it")
    if grid is not None and grid < len(prompts):
        raise BadOption(f"--grid: expected at least {len(prompts)} images (the prompts), got {grid}, raise it")
    if out.suffix.lower() != ".png":
        raise BadOption(f"--out: expected a file that ends in .png, got {str(out)!r}, rename it")


def _open(model: str, decoding: str | None, wishes: dict, settings: dict) -> tuple[OpenedPipeline, str]:
    """What draws, and the name of its decoding."""
    from mmspec.evaluate.model_kinds import is_continuous

    with refuse_unreadable(model, "a folder with a saved pipeline"):
        continuous = is_continuous(model)
    if continuous:  # no drafter of continuous tokens is known to pay
        decoding = "ar" if decoding in (None, "auto") else decoding
        return open_continuous_pipeline(model, decoding, wishes, settings), decoding
    # what is sampled with a seed depends on where drafts end: windows of one length give it again
    sampled = settings["temperature"] > 0 or _asks_windows(wishes)
    decoding = decoding or (decoding_with("usual").name if sampled else "auto")
    return open_discrete_pipeline(model, decoding, wishes, settings), decoding


def _asks_windows(wishes: dict) -> bool:
    """Whether options say what windows are like, which `auto` decides itself."""
    return any(wishes[name] is not None for name in ("window", "coupling", "init"))


def _generate(
    opened: OpenedPipeline, wanted: list, seed: int, batch: int
) -> tuple[list[Image | None], dict, dict[int, str]]:
    """The pictures of all prompts, None for a failed one; what they cost; and by number why one failed."""
    from time import perf_counter

    from mmspec.core.rules.base import UnsupportedCombination
    from mmspec.evaluate.image.runner import figures_of

    rows, pictures, stats, errors = opened.total // opened.stride, [], [], {}
    began = perf_counter()
    for start in range(0, len(wanted), batch):
        part = wanted[start : start + batch]
        with _bars(len(part), rows, opened.stride, start, len(wanted)) as listener:
            try:
                seeds = [seed + start + i for i in range(len(part))]
                out = opened.pipeline(part, seed=seeds, listener=listener, **opened.arguments)
            except UnsupportedCombination as error:
                raise BadOption(f"--rule: {str(error).removeprefix('rule: ')}") from error
        errors |= {start + row: text.removeprefix(f"row {row}: ") for row, text in out.errors.items()}
        pictures += out.images
        stats.append(out.stats)
    figures = figures_of(stats, perf_counter() - began, errors)
    return pictures, figures | {"plain_passes": float(opened.passes)}, errors


@contextmanager
def _bars(images: int, rows: int, stride: int, start: int, of: int) -> Iterator[Callable[[int, int], None]]:
    """A listener that shows how many rows of tokens each picture has; of many pictures how many they have together."""
    with progress() as bar:
        apart = images <= MOST_BARS
        tasks = [
            bar.add_task(f"picture {start + i + 1} of {of}, rows", total=rows) for i in range(images if apart else 1)
        ]
        done = [0] * images
        if not apart:
            bar.update(
                tasks[0], total=rows * images, description=f"pictures {start + 1} to {start + images} of {of}, rows"
            )

        def listen(row: int, filled: int) -> None:
            if filled // stride == done[row]:
                return
            done[row] = filled // stride
            bar.update(tasks[row if apart else 0], completed=done[row] if apart else sum(done))

        yield listen


def _save(pictures: Sequence[Image | None], out: Path) -> None:
    from mmspec.cli.media import contact_sheet
    from mmspec.io.files import replacing

    with replacing(out) as temporary:
        contact_sheet(pictures).save(temporary)


def _print(record: dict, opened: OpenedPipeline) -> None:
    rule = f"{record['rule']} (exact)" if record["exact"] else record["rule"]  # relaxed rules say so in their name
    screen().print(
        f"{record['out']}: {record['images']} {'picture' if record['images'] == 1 else 'pictures'} in {record['seconds']} s, "
        f"{record['target_passes']:g} target passes each instead of {record['plain_passes']:g} "
        f"({record['step_compression']} values a pass), {record['drafter']}, rule {rule}, "
        f"guidance {record['guidance']}, temperature {record['temperature']:g}, {_more(opened.settings)}"
        f"seed {record['seed']}; {record['model']}",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _more(settings: dict) -> str:
    """Settings that only some models have."""
    named = {"top_k": "top-k", "num_iter": "steps"}
    return "".join(f"{shown} {settings[name]}, " for name, shown in named.items() if name in settings)
