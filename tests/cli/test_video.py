"""`mmspec video` on random tiny models: figures, what it passes on, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmspec.cli import app
from tests.cli.video_command import FRAMES, drawn, frames_of, invoked, refused, runner
from tests.evaluate.tiny_video import BLOCKS, blocks

pytestmark = pytest.mark.usefixtures("tiny_video", "built_once")


@pytest.mark.parametrize(
    ("words", "target", "exact"),
    [
        (("--model", "video"), BLOCKS, True),
        (("--decoding", "draft"), 0, False),
        (("--decoding", "sdvg", "--threshold", "inf"), BLOCKS, True),
        (("--decoding", "sdvg", "--threshold", "-inf"), 1, False),
        (("--decoding", "sdvg", "--threshold", "-inf", "--sync", "eager", "--reduction", "mean"), 1, False),
        (("--decoding", "sdvg", "--router", "strided:budget=2", "--sync", "rebuilt"), 2, False),
        (("--decoding", "sdvg", "--router", "random:budget=3"), 3, False),
        (("--decoding", "sdvg", "--router", "relative:margin=inf"), 1, False),
        (("--decoding", "sdvg", "--router", "hybrid:run=1,least=-inf"), 2, False),
        (("--decoding", "sdvg", "--router", "explore:rate=0"), BLOCKS, True),
    ],
)
def test_every_decoding_of_blocks_draws(words: tuple, target: int, exact: bool) -> None:
    record = drawn(*words)
    assert (record["target_blocks"], record["exact"], record["blocks"]) == (target, exact, BLOCKS)
    assert record["frames"] == FRAMES == frames_of("out.gif") and record["error"] is None


def test_by_default_a_video_is_drafted_exactly() -> None:
    record = drawn()
    assert record["model"] == "zoo video/tokens" and record["exact"] and record["decoding"] == "scd:window=64"
    assert record["target_passes"] < record["plain_passes"]


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (("--decoding", "ar"), "zoo video/tokens"),
        (("--blocks", "3"), "zoo video"),
        (("--decoding", "sdvg:threshold=inf"), "zoo video"),
        (("--decoding", "sdvg", "--threshold", "inf", "--reward", "clip"), "zoo video"),
        (("--init", "frame"), "zoo video/tokens"),
    ],
)
def test_the_model_follows_from_the_options(words: tuple[str, ...], model: str) -> None:
    assert drawn(*words)["model"] == model


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--model", "video"), f"the target drew all {BLOCKS} blocks (exact)"),
        (("--decoding", "draft"), f"the drafter alone drew all {BLOCKS} blocks (relaxed)"),
        (
            ("--decoding", "sdvg", "--router", "strided:budget=2"),
            f"{BLOCKS - 2} of {BLOCKS} blocks are accepted drafts, the target drew 2",
        ),
    ],
)
def test_a_plain_sentence_says_who_drew_the_blocks(words: tuple[str, ...], sentence: str) -> None:
    drawn(*words)
    result = invoked(*words)
    assert sentence in result.stdout


def test_a_threshold_of_infinity_is_the_models_own_video() -> None:
    drawn("--model", "video", out="plain.gif")
    drawn("--decoding", "sdvg", "--threshold", "inf", out="same.gif")
    drawn("--decoding", "sdvg", "--threshold", "-inf", out="other.gif")
    plain, same, other = (Path(f"{name}.gif").read_bytes() for name in ("plain", "same", "other"))
    assert plain == same != other


def test_blocks_size_and_switch_are_passed_on() -> None:
    record = drawn("--blocks", "3", "--size", "8x16", "--switch", "1=a blue square", "--fps", "10")
    assert record["blocks"] == 3 and record["fps"] == 10
    with Image.open("out.gif") as found:
        assert found.size == (16, 8) and found.info["duration"] == 100
    out = blocks()("a red circle", seed=1, blocks=3, size=(8, 16), switch={1: "a blue square"})
    assert record["frames"] == len(out.videos[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "video.avi"), "--out: expected a file that ends in .mp4 or .gif, got 'video.avi', rename it"),
        (
            ("--model", "t2i"),
            "--model: expected one of video, video/tokens or a folder with a saved pipeline, got 't2i'",
        ),
        (("--model", "video", "--decoding", "scd"), "--decoding: expected one of ar, draft, sdvg for zoo video"),
        (("--decoding", "sdvg"), "threshold, router: expected one of them, got None and None"),
        (("--decoding", "sdvg", "--threshold", "0", "--router", "strided:budget=2"), "got 0.0 and strided:budget=2"),
        (
            ("--threshold", "0"),
            "--threshold: expected options that --decoding ar takes (none of its own), got '0.0', leave it out",
        ),
        (("--sync", "lazy"), "--sync: expected options that --decoding ar takes (none of its own)"),
        (
            ("--decoding", "sdvg", "--threshold", "0", "--sync", "now"),
            "sync: expected lazy, eager or rebuilt, got 'now'",
        ),
        (
            ("--decoding", "sdvg", "--threshold", "0", "--reduction", "max"),
            "reduction: expected min or mean, got 'max'",
        ),
        (("--decoding", "sdvg", "--threshold", "nan"), "threshold: expected a number or none, got 'nan'"),
        (("--decoding", "sdvg", "--router", "magic"), "--router: expected one of threshold, relative, strided"),
        (("--decoding", "sdvg", "--router", "strided"), "--router: expected strided:budget=..., got 'strided'"),
        (
            ("--decoding", "sdvg", "--router", "strided:budget=x"),
            "router 'strided': budget: expected a whole number, got 'x'",
        ),
        (("--decoding", "sdvg", "--router", "strided:budget=0"), "expected 1 or more, since the first block"),
        (("--decoding", "sdvg", "--router", "hybrid:run=2"), "--router: expected hybrid:run=...,least=..."),
        (
            ("--reward", "magic"),
            "--reward: expected one of reward, clip, or imagereward:FILE, hpsv2:FILE, pickscore:FILE, got",
        ),
        (("--reward", "imagereward"), "--reward: expected one of reward, clip, or imagereward:FILE"),
        (("--reward", "hpsv2:none.safetensors"), "--reward: expected an existing file, got 'none.safetensors'"),
        (("--blocks", "0"), "--blocks: expected a number of at least 1, got 0"),
        (("--size", "8"), "--size: expected height and width, got '8'"),
        (("--size", "8x7"), "size: expected height and width, multiples of 2"),
        (("--switch", "a blue square"), "--switch: expected a block from 1 on and its prompt"),
        (("--switch", "9=a blue square"), "switch: expected blocks 0 to 3, got 9"),
        (("--fps", "0"), "--fps: expected a number of at least 1, got 0"),
        (
            ("--model", "video", "--window", "8"),
            "--window: expected a model of discrete tokens, got 'video', leave",
        ),
        (("--model", "video", "--temperature", "1"), "--temperature: expected a model of discrete tokens"),
        (("--model", "video/tokens", "--stream"), "--stream: expected a model of blocks, got 'video/tokens'"),
        (("--model", "video/tokens", "--threshold", "0"), "--threshold: expected a model of blocks"),
        (("--model", "video/tokens", "--decoding", "sdvg"), "--decoding: expected one of ar, sjd, scd"),
        (("--model", "video/tokens", "--top-p", "0"), "--top-p: expected a number above 0 and up to 1"),
        (("--model", "video/tokens", "--filter-order", "magic"), "--filter-order: expected one of top_k_first"),
    ],
)
def test_inapplicable_options_are_refused(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(*words)


def test_bench_files_match_the_printed_table() -> None:
    asked = ("--prompts", "1", "--repeats", "1", "--methods", "strided", "--threads", "1", "--blocks", "3")
    files = ("--json", "bench.json", "--markdown", "bench.md")
    result = runner.invoke(app, ["bench", "video", *asked, *files])
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert [row["key"] for row in rows] == ["ar", "strided-0.75"]
    assert all(f"| {row['seconds']} |" in Path("bench.md").read_text() and row["blocks"] == 3 for row in rows)
