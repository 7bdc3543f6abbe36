"""`mmspec video`: a prompt in, a video out, block by block or token by token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.console import BadOption, check_writable, reports_errors, save_json, screen
from mmspec.cli.media import video_file
from mmspec.cli.options import (
    Json,
    check_at_least,
    check_filters,
    check_scale,
    drawn_seed,
    flag_of,
    forms,
    listed,
    refuse_unreadable,
)
from mmspec.methods import decoding_with

if TYPE_CHECKING:
    from mmspec.cli.video_generation import VideoResult

MOST_FPS = 1000


@reports_errors
def video(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be seen, and how it moves.")],
    model: Annotated[
        str, typer.Option(help="The zoo's video or video/tokens, or a folder with a saved pipeline.")
    ] = "video",
    decoding: Annotated[
        str | None,
        typer.Option(
            help=f"Of blocks: {listed('video', 'decoding', models='blocks')}; ar when left out. Of tokens: "
            f"{listed('video', 'decoding', 'rule', models='codes')}; {decoding_with('usual', 'video').name} when left out. "
            "Settings behind a colon: sdvg:threshold=0.5."
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="R", help="Of sdvg: the reward that a draft needs to stand; inf is exact.")
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(help=f"Of sdvg instead: {forms('video', 'router')}."),
    ] = None,
    reduction: Annotated[
        str | None, typer.Option(help="Of sdvg: a block's score is the min or the mean of its frames'.")
    ] = None,
    sync: Annotated[
        str | None, typer.Option(help="Of sdvg: how the target keeps up with drafts: lazy, eager or rebuilt.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The smaller pipeline; the zoo's own when left out.")
    ] = None,
    reward: Annotated[
        str,
        typer.Option(
            help="What scores frames: the zoo's reward or clip, or a published model: imagereward:FILE (with vocab.txt of "
            "uncased BERT beside it), hpsv2:FILE or pickscore:FILE."
        ),
    ] = "reward",
    blocks: Annotated[int | None, typer.Option(metavar="N", help="Blocks of frames.")] = None,
    size: Annotated[str | None, typer.Option(metavar="HxW", help="Pixels, such as 480x832.")] = None,
    switch: Annotated[
        list[str] | None, typer.Option(metavar="N=PROMPT", help="Another prompt from block N on; may be repeated.")
    ] = None,
    stream: Annotated[bool, typer.Option(help="Tell of every finished block, and have it in the file.")] = False,
    rule: Annotated[str | None, typer.Option(help="Of tokens: exact or the name of a rule.")] = None,
    window: Annotated[str | None, typer.Option(metavar="N", help="Of tokens: values a pass.")] = None,
    coupling: Annotated[str | None, typer.Option(help="Of tokens: gumbel or maximal.")] = None,
    init: Annotated[
        str | None, typer.Option(help="Of tokens: first drafts: frame, repeat_frame, sample_frame, left, up...")
    ] = None,
    guidance: Annotated[float | None, typer.Option(metavar="S", help="Of tokens: guidance scale.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of tokens; 1 when left out.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Of tokens; 0 for all.")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P", help="Of tokens; 1 for all.")] = None,
    filter_order: Annotated[str | None, typer.Option(help="Of tokens: top_k_first or top_p_first.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drawn and printed when left out.")] = None,
    fps: Annotated[float, typer.Option(metavar="N", help="Frames a second of the file.")] = 16.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The MP4 or GIF to write.")] = Path("video.mp4"),
    json: Json = None,
) -> None:
    """Draw a video of a prompt with drafted decoding."""
    if not prompt.strip():
        raise BadOption("PROMPT: expected a text, got an empty one, say what to draw")
    for flag, value, least in (("--blocks", blocks, 1), ("--seed", seed, 0),
                               ("--temperature", temperature, 0), ("--top-k", top_k, 0)):  # fmt: skip
        check_at_least(flag, least if value is None else value, least)
    check_at_least("--fps", fps, 1, MOST_FPS)
    check_scale("--guidance", guidance)
    out, instead = video_file(out)
    check_writable(out, json)
    of_blocks = {"threshold": threshold, "router": router, "reduction": reduction, "sync": sync, "draft": draft,
                 "blocks": blocks, "size": size, "switch": switch or None, "stream": stream or None}  # fmt: skip
    of_tokens = {"rule": rule, "window": window, "coupling": coupling, "init": init, "guidance": guidance,
                "temperature": temperature, "top_k": top_k, "top_p": top_p, "filter_order": filter_order}  # fmt: skip
    check_filters(top_p, filter_order)
    kind = _kind(model)
    _refuse_others(model, *((of_tokens, "discrete tokens") if kind == "blocks" else (of_blocks, "blocks")))
    if instead is not None:
        screen(stderr=True).print(instead, markup=False, soft_wrap=True)
    seed = drawn_seed(seed)
    decoding = decoding or ("ar" if kind == "blocks" else decoding_with("usual", "video").name)
    if kind == "blocks":
        from mmspec.cli.video_generation import generate_blocks

        made = generate_blocks(prompt, model, decoding, of_blocks | {"reward": reward}, seed, fps, out)
    else:
        from mmspec.cli.video_generation import generate_tokens

        made = generate_tokens(prompt, model, decoding, of_tokens, seed, fps, out)
    _tell(made, {"prompt": prompt, "model": made.name, "decoding": decoding, "seed": seed, "fps": fps}, json)


def _kind(model: str) -> str:
    from mmspec.evaluate.model_kinds import video_kind

    with refuse_unreadable(model, "a folder with a saved pipeline"):
        return video_kind(model)


def _refuse_others(model: str, given: dict, kind: str) -> None:
    """Refuses options of models of the other kind."""
    for name, value in given.items():
        if value is not None:
            flag = flag_of(name)
            raise BadOption(f"{flag}: expected a model of {kind}, got {model!r}, leave {flag} out")


def _tell(made: VideoResult, request: dict, json: Path | None) -> None:
    """Prints and writes what was made; raises ValueError for what is wrong with it."""
    record = {**request, **made.figures, "out": None if made.out is None else str(made.out), "error": made.error}
    if made.out is not None:
        screen().print(f"{made.out}: {made.line}, seed {record['seed']}; {made.name}", markup=False, soft_wrap=True)
    save_json(json, record)
    if made.error is not None:
        kept = "nothing is kept" if made.out is None else f"what is finished is in {made.out}"
        raise ValueError(f"{made.error}; {kept}")
