from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, progress, quiet_transformers, refusing, say, spinner
from mmspec.cli.options import PIPELINE, refuse_unreadable, rule_of
from mmspec.cli.pipelines import VIDEO_EXAMPLE, warn_of_unknown_words
from mmspec.io.files import WriteError
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.io.video_files import save_video
from mmspec.methods.text import split

if TYPE_CHECKING:
    import numpy as np

    from mmspec.run.placement import Placement
    from mmspec.run.video_models import PipelineCall, VideoResources

TOKEN_MODEL, BLOCK_MODEL = "video/tokens", "video"  # models of the zoo for either kind of options


def save_blocks(frames: np.ndarray, out: Path, fps: float, blocks: int, before: int) -> int:
    """Write the first blocks of a video, frames uint8 [F, H, W, 3], over the `before` blocks that the file already
    holds; return `blocks`. A failed write names the blocks that it still holds."""
    try:
        save_video(frames, out, fps)
    except WriteError as error:
        if before:
            error.args = (f"{error}; the first {before} blocks are in {out}",)
        raise
    return blocks


Result = tuple[str, str, dict[str, Any], str | None]  # the model's name, a line, figures, the reason of an early end


def draw_blocks(
    prompt: str,
    model: str,
    decoding: str,
    options: dict[str, Any],
    seed: int,
    fps: float,
    out: Path,
    placement: Placement,
) -> Result:
    """Draw a video of blocks into `out`, which holds the finished blocks if the rest fails or is interrupted."""
    resources, call = _opened(model, decoding, options, placement)
    pipe, stream = call.pipeline, options["stream"]
    later = _switched(options["switch"])
    shape = {"blocks": options["blocks"], "size": _size(options["size"]), "switch": later or None}
    with refusing():
        began = perf_counter()
        run = pipe.start(prompt, **call.arguments, seed=seed, **shape)
    warn_of_unknown_words(pipe, [prompt, *later.values()], example_for(model))
    stats, of = run.stats, run.target.request.blocks
    with _progress(of, stream) as finished, stop_requests() as request:
        more, written = True, 0
        while more and not request.signal:
            more = run.step()
            if stats.emitted[0] and not run.target.errors:
                finished(stats)
                if stream and more:
                    written = save_blocks(pipe.output(run).videos[0], out, fps, stats.emitted[0], written)
    stats.close(perf_counter() - began)
    output = pipe.output(run)
    frames, done = output.videos[0], stats.emitted[0]
    if frames is not None:
        save_blocks(frames, out, fps, done, written)
    if request.signal and done < of and not output.errors:
        raise Stopped(f"{done} of {of} blocks are in {out}", request.signal, resumes=False)
    figures = _block_figures(stats, of, frames, split(decoding)[0] == "draft")
    line = f"{figures['frames']} frames in {figures['seconds']} s: {_block_sentence(figures)}"
    return resources.name, line, figures, error_of(output)


def _block_sentence(figures: dict[str, Any]) -> str:
    """Return who drew the blocks of a video, and whether that is exact."""
    blocks, accepted = figures["blocks"], figures["blocks"] - figures["target_blocks"]
    if not figures["drafted"]:
        return (
            f"the target drew all {blocks} blocks {'(exact)' if figures['exact'] else f'(router {rule_of(figures)})'}"
        )
    if figures["rule"].startswith("drafter alone"):
        return f"the drafter alone drew all {blocks} blocks (relaxed)"
    sentence = f"{accepted} of {blocks} blocks are accepted drafts, the target drew {figures['target_blocks']}"
    return f"{sentence}; {figures['drafter']}, router {rule_of(figures)}"


def example_for(model: str) -> str:
    """Return a prompt that works with a model of the zoo, "" for other models."""
    return VIDEO_EXAMPLE if model in (BLOCK_MODEL, TOKEN_MODEL) else ""


def error_of(output: Any) -> str | None:
    """Return the reason why the only row of a request has ended early, None where it has not."""
    return next(iter(output.errors.values())).removeprefix("row 0: ") if output.errors else None


def _opened(
    model: str, decoding: str, options: dict[str, Any], placement: Placement
) -> tuple[VideoResources, PipelineCall]:
    with spinner("loading the model"):
        from mmspec.run.decoding_options import check_needs
        from mmspec.run.video_models import decoding_of, open_video

        quiet_transformers()
        with refuse_unreadable(model, PIPELINE):
            resources = open_video(model, options["draft"], options["reward"])
        resources.place(placement)
        with refusing():
            if options["draft"] is not None:
                check_needs("draft", decoding, "video", "blocks")
            settings = {name: options[name] for name in ("threshold", "router", "reduction", "sync")}
            return resources, decoding_of(decoding, resources, settings)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdigit() for side in sides):
        raise BadOption(f"--size: expected height and width, got {text!r}, write for example 480x832")
    return int(sides[0]), int(sides[1])


def _switched(texts: list[str] | None) -> dict[int, str]:
    """Return prompts by the block from which on they hold."""
    prompts: dict[int, str] = {}
    for text in texts or ():
        block, _, prompt = text.partition("=")
        if not (block.isascii() and block.isdigit()) or int(block) < 1 or not prompt.strip() or int(block) in prompts:
            raise BadOption(
                f"--switch: expected a block from 1 on and its prompt, once a block, got {text!r}, write 4=PROMPT"
            )
        prompts[int(block)] = prompt
    return prompts


@contextmanager
def _progress(blocks: int, stream: bool | None) -> Iterator[Callable[[Any], None]]:
    """Yield a callable for every finished block: it moves a bar and, with `stream`, prints a line."""
    with progress() as bar:
        task = bar.add_task("blocks", total=blocks)

        def finished(stats: Any) -> None:
            record, number = stats.records[0][-1], stats.emitted[0]
            bar.update(task, completed=number)
            if stream:
                who = (
                    "draft accepted"
                    if record.kept
                    else "draft rejected, redrawn"
                    if record.drafted
                    else "drawn by the target"
                )
                say(f"block {number} of {blocks}: {who}, {stats.block_s[-1]:.2f} s")

        yield finished


def _block_figures(stats: Any, blocks: int, frames: Any, alone: bool) -> dict[str, Any]:
    """Return the figures of a video, rounded once for the screen and the file."""
    records = stats.records[0]
    return {
        "blocks": len(records),
        "of_blocks": blocks,
        "frames": 0 if frames is None else len(frames),
        "drafter": stats.drafter,
        "rule": "drafter alone (relaxed)" if alone else stats.rule,
        "exact": stats.exact and not alone,
        "target_blocks": 0 if alone else sum(not record.kept for record in records),
        "drafted": len(records) if alone else sum(record.drafted for record in records),
        "kept": [bool(record.kept or alone) for record in records],
        "seconds": round(sum(stats.split.values()), 3),
        "target_forwards": 0 if alone else stats.target_forwards,
        "drafter_passes": stats.target_forwards if alone else stats.drafter_passes,
        "latency_p50": round(stats.latency(50), 4) if stats.block_s else None,
        "latency_p95": round(stats.latency(95), 4) if stats.block_s else None,
        **{f"{part}_s": round(seconds, 4) for part, seconds in stats.split.items()},
    }
