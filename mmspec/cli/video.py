"""`mmspec video`: a video of a prompt, drawn block by block or token by token."""

from __future__ import annotations

import shlex
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, progress, refusing, save_json, say
from mmspec.cli.options import (
    PIPELINE,
    check_filters,
    check_left_out,
    check_range,
    drafted_by,
    drawn_seed,
    forms,
    listed,
    placement_of,
    refuse_unreadable,
)
from mmspec.cli.pipelines import open_discrete, warn_of_unknown_words
from mmspec.cli.terminal import say_next
from mmspec.cli.video_blocks import BLOCK_MODEL, TOKEN_MODEL, Result, draw_blocks, error_of, example_for
from mmspec.io.validation import LARGEST_SCALE
from mmspec.io.video_files import save_video, video_file
from mmspec.methods import decoding_with, names
from mmspec.methods.text import split

if TYPE_CHECKING:
    from mmspec.run.image_models import ImageResources
    from mmspec.run.placement import Placement

MOST_FPS = 1000
_WINDOW = 64  # the fastest of docs/benchmarks/video-tokens.md
TOKENS = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}  # defaults


@command(
    drawn=lambda: listed("video", "decoding", models="blocks"),
    decodings=lambda: listed("video", "decoding", "rule", models="codes"),
    usual=lambda: decoding_with("usual", "video").name,
    routers=lambda: forms("video", "router"),
)
def video(
    prompt: str,
    *,
    model: str | None = None,
    decoding: str | None = None,
    threshold: float | None = None,
    router: str | None = None,
    reduction: str | None = None,
    sync: str | None = None,
    draft: str | None = None,
    reward: str = "reward",
    blocks: int | None = None,
    size: str | None = None,
    switch: list[str] | None = None,
    stream: bool = False,
    rule: str | None = None,
    window: str | None = None,
    coupling: str | None = None,
    init: str | None = None,
    guidance: float | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    filter_order: str | None = None,
    seed: int | None = None,
    fps: float = 16.0,
    out: Path = Path("video.mp4"),
    device: str = "auto",
    dtype: str = "auto",
    json: Path | None = None,
) -> None:
    """Draw a video of a prompt in fewer passes of the model, exactly unless you ask for a relaxed decoding.

    By default a model of discrete tokens draws 8 small frames exactly. Drafted blocks of the model video are relaxed: an
    accepted block is the smaller model's.

    Args:
        prompt (PROMPT): Objects of the video and their motion, such as "a red circle moves to the right".
        model (NAME): Model: video/tokens or video of the zoo, or a folder with a saved pipeline. When left out, video where
            an option of blocks is set, else video/tokens.
        decoding (NAME): Decoding. Of tokens: {decodings}; {usual} when left out. Of blocks: {drawn}; ar when left out.
            Settings follow a colon: sdvg:threshold=0.5.
        threshold (R): Blocks, sdvg: reward from which a draft block is accepted; inf is exact.
        router (NAME): Blocks, sdvg: rule that accepts draft blocks, in place of a threshold: {routers}.
        reduction (NAME): Blocks, sdvg: score of a block from its frames: min or mean.
        sync (NAME): Blocks, sdvg: when the target reads accepted drafts: lazy, eager or rebuilt.
        draft (FOLDER): Blocks: folder of the smaller pipeline; the zoo's own when left out.
        reward (NAME): Blocks: scorer of frames: reward or clip of the zoo, imagereward:FILE (with vocab.txt of uncased BERT
            beside it), hpsv2:FILE or pickscore:FILE.
        blocks (N): Blocks: number of blocks of frames.
        size (HxW): Blocks: pixels, such as 480x832.
        switch (N=PROMPT): Blocks: another prompt from block N on; may be repeated.
        stream (--stream): Blocks: print a line after every block, and write the file anew.
        rule (NAME): Tokens: acceptance rule, exact or another rule of `mmspec methods --kind rule`.
        window (N): Tokens: draft length, values per pass.
        coupling (NAME): Tokens: coupling of draft and target samples: gumbel or maximal.
        init (NAME): Tokens: first drafts: frame, repeat_frame, sample_frame, left, up and others.
        guidance (S): Tokens: guidance scale; the model's own when left out.
        temperature (T): Tokens: 0 takes the most probable value; 1 when left out.
        top_k (K): Tokens: number of values to sample from, 0 for all.
        top_p (P): Tokens: probability mass to sample from, 1 for all.
        filter_order (NAME): Tokens: order of the filters, top_k_first or top_p_first.
        seed (N): Seed of the video; drawn and printed when left out.
        fps (N): Frames a second of the file.
        out (FILE): MP4 or GIF file to write.

    Examples:
        mmspec video "a red circle moves to the right" --seed 0 --out circle.gif
        mmspec video "a red circle moves to the right" --decoding sdvg --threshold 0.5 --out sdvg.gif
        mmspec video "a blue star goes up" --model video --blocks 3 --out blocks.gif
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
    placement = placement_of(device, dtype)
    model = model or _model_for(of_blocks | {"reward": None if reward == "reward" else reward}, decoding)
    draws_blocks = _draws_blocks(model)
    others, kind = (of_tokens, "discrete tokens") if draws_blocks else (of_blocks, "blocks")
    check_left_out(others, f"a model of {kind}, got {model!r}")
    if notice is not None:
        say(notice, stderr=True)
    seed, decoding = drawn_seed(seed), decoding or ("ar" if draws_blocks else _usual(window))
    options, generate = (of_blocks | {"reward": reward}, draw_blocks) if draws_blocks else (of_tokens, _tokens)
    name, line, figures, error = generate(prompt, model, decoding, options, seed, fps, out, placement)
    written = str(out) if figures["frames"] else None
    record = {
        "prompt": prompt,
        "model": name,
        "decoding": decoding,
        "seed": seed,
        "fps": fps,
        **figures,
        "out": written,
        "error": error,
    }
    if written is not None:
        say(f"{out}: {line}; seed {seed}, {name}")
    save_json(json, record)
    if error is not None:
        raise ValueError(f"{error}; {'nothing is kept' if written is None else f'the finished frames are in {out}'}")
    if decoding != "ar":
        say_next(
            f"mmspec video {shlex.quote(prompt)} --model {model} --decoding ar --seed {seed} --out plain.gif  (to compare)"
        )


def _usual(window: str | None) -> str:
    """Return the decoding of tokens where none is named, with its fastest window."""
    name = decoding_with("usual", "video").name
    return f"{name}:window={_WINDOW}" if window is None else name


def _model_for(of_blocks: dict[str, Any], decoding: str | None) -> str:
    """Return the zoo's model for the options: `video` where an option of blocks is set, else `video/tokens`."""
    tokens, blocks = (names("video", "decoding", models=kind) for kind in ("codes", "blocks"))
    name = split(decoding, "--decoding")[0] if decoding else "ar"
    is_of_blocks = any(value is not None for value in of_blocks.values()) or (name in blocks and name not in tokens)
    return BLOCK_MODEL if is_of_blocks else TOKEN_MODEL


def _draws_blocks(model: str) -> bool:
    from mmspec.run.model_kinds import BLOCKS, video_kind

    with refuse_unreadable(model, PIPELINE):
        return video_kind(model) == BLOCKS


def _tokens(
    prompt: str,
    model: str,
    decoding: str,
    options: dict[str, Any],
    seed: int,
    fps: float,
    out: Path,
    placement: Placement,
) -> Result:
    import numpy as np

    from mmspec.core.round.rules.base import UnsupportedCombination
    from mmspec.run.timed_run import figures_of

    usual = {name: value for name, value in TOKENS.items() if options[name] is None}
    opened = open_discrete(model, decoding, options | usual, _token_resources, "video", placement)
    with refusing():
        prompts = opened.resources.pipeline_prompts([prompt])
    warn_of_unknown_words(opened.resources.pipeline, prompts, example_for(model))
    began = perf_counter()
    with progress() as bar:
        task = bar.add_task("tokens", total=opened.total)
        try:
            output = opened.resources.pipeline(
                prompts,
                seed=[seed],
                **opened.arguments,
                listener=lambda row, filled: bar.update(task, completed=filled),
            )
        except UnsupportedCombination as error:
            raise BadOption(f"--decoding: {error}") from error
    figures, pictures = figures_of([output.stats], perf_counter() - began, output.errors), output.videos[0]
    figures |= {**opened.settings, "frames": len(pictures or ()), "plain_passes": float(opened.passes)}
    if pictures is not None:
        save_video(np.stack([np.asarray(picture) for picture in pictures]), out, fps)
    line = (
        f"{figures['frames']} frames in {figures['seconds']} s: {figures['target_passes']:g} target passes instead of "
        f"{figures['plain_passes']:g}; {drafted_by(figures)}, guidance {figures['guidance']}, "
        f"temperature {figures['temperature']:g}"
    )
    return opened.resources.name, line, figures, error_of(output)


def _token_resources(model: str) -> ImageResources:
    from mmspec.run.video_models import open_video

    with refuse_unreadable(model, PIPELINE):
        return open_video(model).codes
