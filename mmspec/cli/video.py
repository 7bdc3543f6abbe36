"""`mmspec video`: a prompt in, a video out, block by block or token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import (
    BadOption,
    check_writable,
    progress,
    quiet_transformers,
    refusing,
    save_json,
    say,
    spinner,
)
from mmspec.cli.options import (
    PIPELINE,
    check_filters,
    check_left_out,
    check_range,
    drawn_seed,
    forms,
    listed,
    refuse_unreadable,
    rule_of,
)
from mmspec.cli.pipelines import open_discrete
from mmspec.io.files import WriteError
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.io.validation import LARGEST_SCALE
from mmspec.io.video_files import save_video, video_file
from mmspec.methods import decoding_with
from mmspec.methods.text import split

if TYPE_CHECKING:
    import numpy as np

    from mmspec.evaluate.image.resources import ImageResources
    from mmspec.evaluate.video.resources import PipelineCall, VideoResources

MOST_FPS = 1000
TOKENS = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}  # when left out


@command(
    drawn=lambda: listed("video", "decoding", models="blocks"),
    decodings=lambda: listed("video", "decoding", "rule", models="codes"),
    usual=lambda: decoding_with("usual", "video").name,
    routers=lambda: forms("video", "router"),
)
def video(
    prompt: str, *, model: str = "video", decoding: str | None = None, threshold: float | None = None,
    router: str | None = None, reduction: str | None = None, sync: str | None = None, draft: str | None = None,
    reward: str = "reward", blocks: int | None = None, size: str | None = None, switch: list[str] | None = None,
    stream: bool = False, rule: str | None = None, window: str | None = None, coupling: str | None = None,
    init: str | None = None, guidance: float | None = None, temperature: float | None = None, top_k: int | None = None,
    top_p: float | None = None, filter_order: str | None = None, seed: int | None = None, fps: float = 16.0,
    out: Path = Path("video.mp4"), json: Path | None = None,
) -> None:  # fmt: skip
    """Draw a video of a prompt with drafted decoding.

    Args:
        prompt (PROMPT): What is to be seen, and how it moves.
        model: The zoo's video or video/tokens, or a folder with a saved pipeline.
        decoding: Of blocks: {drawn}; ar when left out. Of tokens: {decodings}; {usual} when left out. Settings behind a
            colon: sdvg:threshold=0.5.
        threshold (R): Of sdvg: the reward that a draft needs to stand; inf is exact.
        router: Of sdvg instead: {routers}.
        reduction: Of sdvg: a block's score is the min or the mean of its frames'.
        sync: Of sdvg: how the target keeps up with drafts: lazy, eager or rebuilt.
        draft (FOLDER): The smaller pipeline; the zoo's own when left out.
        reward: What scores frames: the zoo's reward or clip, or a published model: imagereward:FILE (with vocab.txt of
            uncased BERT beside it), hpsv2:FILE or pickscore:FILE.
        blocks (N): Blocks of frames.
        size (HxW): Pixels, such as 480x832.
        switch (N=PROMPT): Another prompt from block N on; may be repeated.
        stream: Tell of every finished block, and have it in the file.
        rule: Of tokens: exact or the name of a rule.
        window (N): Of tokens: values a pass.
        coupling: Of tokens: gumbel or maximal.
        init: Of tokens: first drafts: frame, repeat_frame, sample_frame, left, up...
        guidance (S): Of tokens: guidance scale.
        temperature: Of tokens; 1 when left out.
        top_k (K): Of tokens; 0 for all.
        top_p (P): Of tokens; 1 for all.
        filter_order: Of tokens: top_k_first or top_p_first.
        seed: Drawn and printed when left out.
        fps (N): Frames a second of the file.
        out (FILE): The MP4 or GIF to write.
    """
    if not prompt.strip():
        raise BadOption("PROMPT: expected a text, got an empty one, say what to draw")
    check_range(1, blocks=blocks)
    check_range(0, seed=seed, temperature=temperature, top_k=top_k)
    check_range(1, MOST_FPS, fps=fps)
    check_range(0, LARGEST_SCALE, guidance=guidance)
    with refusing():
        out, notice = video_file(out)
    check_writable(out, json)
    of_blocks = {"threshold": threshold, "router": router, "reduction": reduction, "sync": sync, "draft": draft,
                 "blocks": blocks, "size": size, "switch": switch or None, "stream": stream or None}  # fmt: skip
    of_tokens = {"rule": rule, "window": window, "coupling": coupling, "init": init, "guidance": guidance,
                 "temperature": temperature, "top_k": top_k, "top_p": top_p, "filter_order": filter_order}  # fmt: skip
    check_filters(top_p, filter_order)
    draws_blocks = _draws_blocks(model)
    others, kind = (of_tokens, "discrete tokens") if draws_blocks else (of_blocks, "blocks")
    check_left_out(others, f"a model of {kind}, got {model!r}")
    if notice is not None:
        say(notice, stderr=True)
    seed, decoding = drawn_seed(seed), decoding or ("ar" if draws_blocks else decoding_with("usual", "video").name)
    options, generate = (of_blocks | {"reward": reward}, _blocks) if draws_blocks else (of_tokens, _tokens)
    name, line, figures, error = generate(prompt, model, decoding, options, seed, fps, out)
    written = str(out) if figures["frames"] else None
    record = {"prompt": prompt, "model": name, "decoding": decoding, "seed": seed, "fps": fps, **figures, "out": written,
              "error": error}  # fmt: skip
    if written is not None:
        say(f"{out}: {line}, seed {seed}; {name}")
    save_json(json, record)
    if error is not None:
        raise ValueError(f"{error}; {'nothing is kept' if written is None else f'what is finished is in {out}'}")


def _draws_blocks(model: str) -> bool:
    """Whether a model draws blocks; others draw discrete tokens."""
    from mmspec.evaluate.model_kinds import BLOCKS, video_kind

    with refuse_unreadable(model, PIPELINE):
        return video_kind(model) == BLOCKS


def save_blocks(frames: np.ndarray, out: Path, fps: float, blocks: int, before: int) -> int:
    """Writes the first blocks and returns how many; a failure says that those `before` are in the file."""
    try:
        save_video(frames, out, fps)
    except WriteError as error:
        if before:
            error.args = (f"{error}; the first {before} blocks are in {out}",)
        raise
    return blocks


Result = tuple[str, str, dict[str, Any], str | None]  # the model's name, a line, figures, why there is no more of it


def _blocks(
    prompt: str, model: str, decoding: str, options: dict[str, Any], seed: int, fps: float, out: Path
) -> Result:
    """Draws a video of blocks into `out`, which holds what is finished if the rest fails or is interrupted."""
    resources, call = _opened(model, decoding, options)
    pipe, stream = call.pipeline, options["stream"]
    shape = {"blocks": options["blocks"], "size": _size(options["size"]), "switch": _switched(options["switch"])}
    with refusing():
        began = perf_counter()
        run = pipe.start(prompt, **call.arguments, seed=seed, **shape)
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
    line = (f"{figures['blocks']} blocks, {figures['frames']} frames in {figures['seconds']} s, "
            f"{figures['target_blocks']} by the target, {figures['drafter']}, router {rule_of(figures)}")  # fmt: skip
    return resources.name, line, figures, _error_of(output)


def _error_of(output: Any) -> str | None:
    """Why the only row of a request has ended early."""
    return next(iter(output.errors.values())).removeprefix("row 0: ") if output.errors else None


def _opened(model: str, decoding: str, options: dict[str, Any]) -> tuple[VideoResources, PipelineCall]:
    with spinner("loading the model"):
        from mmspec.evaluate.decoding_options import check_needs
        from mmspec.evaluate.video.resources import decoding_of, open_video

        quiet_transformers()
        with refuse_unreadable(model, PIPELINE):
            resources = open_video(model, options["draft"], options["reward"])
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


@contextmanager
def _progress(blocks: int, stream: bool | None) -> Iterator[Callable[[Any], None]]:
    """A callable for every finished block that moves a bar and, streaming, prints a line."""
    with progress() as bar:
        task = bar.add_task("blocks", total=blocks)

        def finished(stats: Any) -> None:
            record, number = stats.records[0][-1], stats.emitted[0]
            bar.update(task, completed=number)
            if stream:
                who = "the draft stands" if record.kept else "redrawn" if record.drafted else "drawn by the model"
                say(f"block {number} of {blocks}: {who}, {stats.block_s[-1]:.2f} s")

        yield finished


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


def _tokens(
    prompt: str, model: str, decoding: str, options: dict[str, Any], seed: int, fps: float, out: Path
) -> Result:
    """Draws a video of discrete tokens into `out`."""
    import numpy as np

    from mmspec.core.rules.base import UnsupportedCombination
    from mmspec.evaluate.image.figures import figures_of

    usual = {name: value for name, value in TOKENS.items() if options[name] is None}
    opened = open_discrete(model, decoding, options | usual, _token_resources, "video")
    with refusing():
        prompts = opened.resources.pipeline_prompts([prompt])
    began = perf_counter()
    with progress() as bar:
        task = bar.add_task("tokens", total=opened.total)
        try:
            output = opened.resources.pipeline(prompts, seed=[seed], **opened.arguments,
                                               listener=lambda row, filled: bar.update(task, completed=filled))  # fmt: skip
        except UnsupportedCombination as error:
            raise BadOption(f"--decoding: {error}") from error
    figures, pictures = figures_of([output.stats], perf_counter() - began, output.errors), output.videos[0]
    figures |= {**opened.settings, "frames": len(pictures or ()), "plain_passes": float(opened.passes)}
    if pictures is not None:
        save_video(np.stack([np.asarray(one) for one in pictures]), out, fps)
    line = (f"{figures['frames']} frames in {figures['seconds']} s, {figures['target_passes']:g} target passes instead of "
            f"{figures['plain_passes']:g}, {figures['drafter']}, rule {rule_of(figures)}, guidance {figures['guidance']}, "
            f"temperature {figures['temperature']:g}")  # fmt: skip
    return opened.resources.name, line, figures, _error_of(output)


def _token_resources(model: str) -> ImageResources:
    from mmspec.evaluate.video.resources import open_video

    with refuse_unreadable(model, PIPELINE):
        return open_video(model).codes
