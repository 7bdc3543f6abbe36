"""How `mmspec video` draws: block by block, or token by token, frame after frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mmspec.cli.console import BadOption, progress, refusing, screen, spinner
from mmspec.cli.image_models import CONTINUOUS_OPTIONS, open_discrete_pipeline
from mmspec.cli.media import save_video
from mmspec.cli.options import refuse_unreadable
from mmspec.io.files import WriteError
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.methods.text import split

if TYPE_CHECKING:
    from mmspec.evaluate.image.resources import ImageResources
    from mmspec.evaluate.video.decodings import PipelineCall
    from mmspec.evaluate.video.resources import VideoResources


@dataclass(frozen=True, slots=True)
class VideoResult:
    """name: of the model.   out: the file, None where nothing was finished.   line, figures: for screen and record.
    error: why there is no more of it."""

    name: str
    out: Path | None
    line: str
    figures: dict[str, Any]
    error: str | None


def generate_blocks(
    prompt: str, model: str, decoding: str, settings: dict[str, Any], seed: int, fps: float, out: Path
) -> VideoResult:
    """Draws a video of blocks into `out`, which holds what is finished if the rest fails or is interrupted."""
    resources, way = _opened(model, decoding, settings)
    pipe, how = way.pipeline, dict(way.arguments)
    how |= {
        "seed": seed,
        "blocks": settings["blocks"],
        "size": _size(settings["size"]),
        "switch": _switched(settings["switch"]),
    }
    with refusing():
        began = perf_counter()
        run = pipe.start(prompt, **how)
    blocks = run.target.request.blocks
    with _BlockProgress(blocks, settings["stream"]) as finished, stop_requests() as request:
        more, written = True, 0
        while more and not request.signal:
            more = run.step()
            if run.stats.emitted[0] and not run.target.errors:
                finished(run.stats)
                if settings["stream"] and more:
                    written = _save_blocks(pipe.output(run).videos[0], out, fps, run.stats.emitted[0], written)
    run.stats.close(perf_counter() - began)
    made = pipe.output(run)
    frames, done = made.videos[0], run.stats.emitted[0]
    if frames is not None:
        _save_blocks(frames, out, fps, done, written)
    if request.signal and done < blocks and not made.errors:
        raise Stopped(f"{done} of {blocks} blocks are in {out}", request.signal, resumes=False)
    figures = _block_figures(run.stats, blocks, frames, split(decoding)[0] == "draft")
    error = None if not made.errors else next(iter(made.errors.values())).removeprefix("row 0: ")
    return VideoResult(resources.name, None if frames is None else out, _blocks_line(figures), figures, error)


def _save_blocks(frames: np.ndarray, out: Path, fps: float, blocks: int, before: int) -> int:
    """Writes the first blocks and returns how many; a failure says that those `before` are in the file."""
    try:
        save_video(frames, out, fps)
    except WriteError as error:
        if before:
            error.args = (f"{error}; the first {before} blocks are in {out}",)
        raise
    return blocks


def _opened(model: str, decoding: str, settings: dict[str, Any]) -> tuple[VideoResources, PipelineCall]:
    with spinner("loading the model"):
        from mmspec.cli.console import quiet_transformers
        from mmspec.evaluate.decoding_options import check_needs
        from mmspec.evaluate.video.decodings import decoding_of
        from mmspec.evaluate.video.resources import open_video

        quiet_transformers()
        with refuse_unreadable(model, "a folder with a saved pipeline"):
            resources = open_video(model, settings["draft"], settings["reward"])
        with refusing():
            if settings["draft"] is not None:
                check_needs("draft", decoding, "video", "blocks")
            options = {name: settings[name] for name in ("threshold", "router", "reduction", "sync")}
            return resources, decoding_of(decoding, resources, options)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isascii() and side.isdigit() for side in sides):
        raise BadOption(f"--size: expected height and width, got {text!r}, write for example 480x832")
    return int(sides[0]), int(sides[1])


def _switched(given: list[str] | None) -> dict[int, str] | None:
    """Prompts by the block from which on they hold."""
    found: dict[int, str] = {}
    for one in given or ():
        block, _, text = one.partition("=")
        if not (block.isascii() and block.isdigit()) or int(block) < 1 or not text.strip() or int(block) in found:
            raise BadOption(
                f"--switch: expected a block from 1 on and its prompt, once a block, got {one!r}, write 4=PROMPT"
            )
        found[int(block)] = text
    return found or None


class _BlockProgress:
    """A context around drawing whose callable, called with every finished block, moves a bar or, streaming, prints a line."""

    def __init__(self, blocks: int, stream: bool | None):
        self.blocks, self.stream, self.bar = blocks, stream, progress()

    def __enter__(self) -> Callable[[Any], None]:
        bar = self.bar.__enter__()
        task = bar.add_task("blocks", total=self.blocks)

        def finished(stats: Any) -> None:
            record, number = stats.records[0][-1], stats.emitted[0]
            bar.update(task, completed=number)
            if self.stream:
                who = "the draft stands" if record.kept else "redrawn" if record.drafted else "drawn by the model"
                screen().print(f"block {number} of {self.blocks}: {who}, {stats.block_s[-1]:.2f} s", markup=False)

        return finished

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)


def _block_figures(stats: Any, blocks: int, frames: Any, alone: bool) -> dict[str, Any]:
    """What a video cost, rounded once for the screen and the file."""
    records = stats.records[0]
    return {
        "blocks": len(records),
        "of_blocks": blocks,
        "frames": 0 if frames is None else len(frames),
        "drafter": stats.drafter,
        "rule": "drafter alone (relaxed)" if alone else stats.rule,
        "exact": stats.exact and not alone,
        "target_blocks": 0 if alone else sum(not one.kept for one in records),
        "drafted": len(records) if alone else sum(one.drafted for one in records),
        "kept": [bool(one.kept or alone) for one in records],
        "seconds": round(sum(stats.split.values()), 3),
        "target_forwards": 0 if alone else stats.target_forwards,
        "drafter_passes": stats.target_forwards if alone else stats.drafter_passes,
        "latency_p50": round(stats.latency(50), 4) if stats.block_s else None,
        "latency_p95": round(stats.latency(95), 4) if stats.block_s else None,
        **{f"{part}_s": round(seconds, 4) for part, seconds in stats.split.items()},
    }


def _blocks_line(figures: dict[str, Any]) -> str:
    rule = f"{figures['rule']} (exact)" if figures["exact"] else figures["rule"]
    return (f"{figures['blocks']} blocks, {figures['frames']} frames in {figures['seconds']} s, "
            f"{figures['target_blocks']} by the target, {figures['drafter']}, router {rule}")  # fmt: skip


def generate_tokens(
    prompt: str, model: str, decoding: str, options: dict[str, Any], seed: int, fps: float, out: Path
) -> VideoResult:
    """Draw a video of discrete tokens into `out`."""
    from mmspec.core.rules.base import UnsupportedCombination
    from mmspec.evaluate.image.runner import figures_of

    wishes = {name: options[name] for name in ("rule", "window", "coupling", "init")}
    wishes |= dict.fromkeys(("drafter", "upsampler", *CONTINUOUS_OPTIONS))
    usual = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}
    settings = {name: value if options[name] is None else options[name] for name, value in usual.items()}
    opened = open_discrete_pipeline(
        model, decoding, wishes, settings | {"guidance_scale": options["guidance"]}, _token_resources
    )
    with refusing():
        given = opened.given([prompt])
    began = perf_counter()
    with progress() as bar:
        task = bar.add_task("tokens", total=opened.total)
        try:
            made = opened.pipeline(given, seed=[seed], listener=lambda row, filled: bar.update(task, completed=filled),
                                   **opened.arguments)  # fmt: skip
        except UnsupportedCombination as error:
            raise BadOption(f"--decoding: {error}") from error
    figures = figures_of([made.stats], perf_counter() - began, made.errors)
    pictures = made.videos[0]
    figures |= {**opened.settings, "frames": len(pictures or ()), "plain_passes": float(opened.passes)}
    if pictures is not None:
        save_video(np.stack([np.asarray(one) for one in pictures]), out, fps)
    error = None if not made.errors else next(iter(made.errors.values())).removeprefix("row 0: ")
    return VideoResult(opened.name, None if pictures is None else out, _tokens_line(figures), figures, error)


def _token_resources(model: str) -> ImageResources:
    from mmspec.evaluate.video.resources import open_video

    with refuse_unreadable(model, "a folder with a saved pipeline"):
        return open_video(model).codes


def _tokens_line(figures: dict[str, Any]) -> str:
    rule = f"{figures['rule']} (exact)" if figures["exact"] else figures["rule"]
    return (f"{figures['frames']} frames in {figures['seconds']} s, {figures['target_passes']:g} target passes instead of "
            f"{figures['plain_passes']:g}, {figures['drafter']}, rule {rule}, guidance {figures['guidance']}, temperature "
            f"{figures['temperature']:g}")  # fmt: skip
