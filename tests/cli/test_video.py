"""`mmspec video` on random tiny models: files, figures, streams, interrupts, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app, film
from mmspec.core.files import Unwritten
from tests.evaluate.tiny_video import BLOCKS, blocks, saved, tiny_video_zoo, use_tiny_video
from tests.house.tree import ROOT
from tests.video.decoding.tiny import bright

runner = CliRunner()
FRAMES = 3 + 4 * (BLOCKS - 1)
FFMPEG = find_spec("imageio_ffmpeg") is not None


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_video(monkeypatch)
    monkeypatch.chdir(tmp_path)


def invoked(*words: str, out: str = "out.gif"):
    return runner.invoke(app, ["video", "a red circle", "--seed", "1", "--out", out, "--json", "out.json", *words])


def drawn(*words: str, out: str = "out.gif") -> dict:
    """The record of a video that must succeed, whose screen line shows the record's figures."""
    result = invoked(*words, out=out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    record = json.loads(Path("out.json").read_text())
    line = result.stdout.splitlines()[-1]
    for shown in (f"{record['seconds']} s", "seed 1", f"{record['frames']} frames", record["out"], record["model"],
                  "(exact)" if record["exact"] else "(relaxed)"):  # fmt: skip
        assert shown in line
    return record


def refused(*words: str, out: str = "refused.gif") -> str:
    result = invoked(*words, out=out)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stdout == "" and not Path(out).exists()
    (line,) = result.stderr.splitlines()
    return line


def frames_of(file: str) -> int:
    with Image.open(file) as found:
        return found.n_frames


@pytest.mark.parametrize(
    ("words", "target", "exact"),
    [
        ((), BLOCKS, True),
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


def test_a_threshold_of_infinity_is_the_models_own_video() -> None:
    drawn(out="plain.gif")
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


def test_finished_blocks_are_told_of_and_in_the_file_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = film.write_film
    monkeypatch.setattr(film, "write_film", lambda *given: whole(*given) or seen.append(frames_of("out.gif")))
    result = invoked("--stream", "--decoding", "sdvg", "--router", "strided:budget=2")
    assert result.exit_code == 0 and seen == [3, 7, 11, 15]
    told = [line.split(",")[0] for line in result.stdout.splitlines()[:-1]]
    assert told == ["block 1 of 4: drawn by the model", "block 2 of 4: the draft stands",
                    "block 3 of 4: drawn by the model", "block 4 of 4: the draft stands"]  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_finished_is_kept_when_it_is_interrupted(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupting(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        signal.raise_signal(number)
        return bright(frames, prompt)

    monkeypatch.setitem(tiny_video_zoo(), "video/reward", interrupting)
    result = invoked("--decoding", "sdvg", "--threshold", "0")
    assert result.exit_code == code and "Stopped: 2 of 4 blocks are in out.gif\n" in result.stderr
    assert frames_of("out.gif") == 7


def test_what_is_finished_is_kept_when_a_reward_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def spoiled(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        calls.append(1)
        return bright(frames, prompt) * (float("nan") if len(calls) == 2 else 1)

    monkeypatch.setitem(tiny_video_zoo(), "video/reward", spoiled)
    result = invoked("--decoding", "sdvg", "--threshold", "0")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1 and "expected finite scores, got nan" in line
    assert line.endswith("what is finished is in out.gif") and frames_of("out.gif") == 7
    assert json.loads(Path("out.json").read_text())["blocks"] == 2


def test_a_full_disk_is_one_error_and_the_frames_are_kept_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Image.Image.save

    def full(image: Image.Image, path: Path, **how: object) -> None:
        if Path(path).resolve().parent == tmp_path.resolve():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        whole(image, path, **how)

    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(Image.Image, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    result = invoked()
    (line,) = result.stderr.splitlines()
    spare = next((tmp_path / "spare").iterdir())
    assert result.exit_code == 1 and f"the {FRAMES} finished frames are kept in {spare}" in line.replace("  ", " ")
    assert "expected to write 'out.gif', got 'No space left on device'" in line and frames_of(str(spare)) == FRAMES
    assert not Path("out.gif").exists()


@pytest.mark.parametrize("limit", (1200, 2600))
@pytest.mark.parametrize("suffix", (".gif", ".mp4"))
def test_where_nothing_more_can_be_written_the_stream_says_what_is_in_the_file(
    limit: int, suffix: str, tmp_path: Path
) -> None:
    """A limit of the system's own, in a process of its own."""
    if suffix == ".mp4" and not FFMPEG:
        pytest.skip("imageio-ffmpeg is not installed")
    code = (
        "import resource, signal, sys\n"
        "from mmspec.cli.film import keep\n"
        "from mmspec.cli.video_blocks import _kept\n"
        "import numpy as np\n"
        "noise = np.random.default_rng(0).integers(0, 255, (9, 16, 16, 3), dtype=np.uint8)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from pathlib import Path\n"
        "written, out = 0, Path(sys.argv[1])\n"
        "for block in range(1, 10):\n"
        "    written = _kept(noise[:block], out, 8, block, written)\n"
    )
    out = tmp_path / f"film{suffix}"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and f"expected to write '{out}', got 'File too large'" in last
    if out.exists():
        blocks = int(last.split("the first ")[1].split(" blocks")[0])
        assert last.endswith(f"the first {blocks} blocks are in {out}") and out.stat().st_size <= limit
        assert suffix == ".mp4" or frames_of(str(out)) == blocks
    else:
        assert "are in" not in last
    assert [one.name for one in tmp_path.iterdir()] == ([out.name] if out.exists() else [])


def test_models_in_folders_with_their_drafters(tmp_path: Path) -> None:
    big, small = saved(tmp_path / "big"), saved(tmp_path / "small", 1)
    common = ("--model", str(big), "--decoding", "sdvg", "--router", "strided:budget=2")
    assert drawn(*common, "--draft", str(small))["target_blocks"] == 2
    assert "--draft: expected the folder of a smaller model" in refused(*common)
    assert "--draft: expected --decoding sdvg or draft" in refused("--model", str(big), "--draft", str(small))
    for other in ("video", str(tmp_path / "none")):
        said = refused(*common, "--draft", other)
        assert f"--draft: expected a folder with a saved pipeline of blocks, got '{other}'" in said
    (big / "model_index.json").write_text('{"_class_name": "BlockVideoPipeline", "size": [8, 7]}')
    assert refused("--model", str(big)).startswith("Error: --model: expected a folder with a saved pipeline, got '")


def test_a_folder_of_diffusers_says_how_its_pipeline_is_taken(tmp_path: Path) -> None:
    from mmspec.evaluate.video.kinds import DIFFUSERS
    from mmspec.video.adapters.whole_pipelines import _FAMILIES

    assert set(DIFFUSERS) == set(_FAMILIES)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model_index.json").write_text('{"_class_name": "HeliosPipeline"}')
    said = refused("--model", str(tmp_path / "theirs"))
    assert "got diffusers' HeliosPipeline in" in said and said.endswith("mmspec.video.from_diffusers")


def test_a_drafter_of_another_autoencoder_or_of_other_blocks_is_refused(tmp_path: Path) -> None:
    from mmspec.video import BlockPlan, BlockVideoPipeline, StreamingWanVAE
    from tests.video.decoding.tiny import SIZE, vae
    from tests.video.test_pipeline import encoder
    from tests.video.tiny import video
    from tests.video.vae.tiny import autoencoder

    foreign = autoencoder("two frames a latent")
    foreign.register_to_config(latents_mean=[0.0, 0.0, 0.0])
    for name, plan, own in (("vae", BlockPlan(2), StreamingWanVAE(foreign)), ("blocks", BlockPlan(3), vae())):
        BlockVideoPipeline(video(plan=plan), own, encoder(), size=SIZE, blocks=2).save_pretrained(tmp_path / name)
    big = str(saved(tmp_path / "big"))
    routed = ("--model", big, "--decoding", "sdvg", "--router", "strided:budget=2", "--draft")
    wrong = "expected latents of the same autoencoder, got mean (0.0, 0.0, 0.0) instead of (0.3, -0.2, 0.1)"
    assert f"drafter: {wrong}" in refused(*routed, str(tmp_path / "vae"))
    assert f"--draft: {wrong}" in refused("--model", big, "--decoding", "draft", "--draft", str(tmp_path / "vae"))
    blocks = "expected blocks as the target's, 2 latent frames a block, got 3 latent frames a block"
    assert f"drafter: {blocks}" in refused(*routed, str(tmp_path / "blocks"))


def test_published_rewards_score_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    from mmspec.evaluate.video.rewards import reward_of
    from tests.video.rewards.reference import CONFIG, random_state
    from tests.video.rewards.test_imagereward import WORDS, scorer

    folder, frames = tmp_path / "reward", torch.rand(2, 3, 48, 96) * 2 - 1
    folder.mkdir()
    save_file(random_state(), folder / "imagereward.safetensors")
    named = f"imagereward:{folder / 'imagereward.safetensors'}"
    (folder / "med_config.json").write_text(json.dumps(CONFIG))
    assert "vocab.txt" in refused("--decoding", "sdvg", "--threshold", "0", "--reward", named)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    found, crop = reward_of(named)(frames, "a red ball"), scorer(tmp_path / "words.txt")(frames, "a red ball")
    assert found.shape == crop.shape and not torch.equal(found, crop)  # the sides of a wide frame count, too
    assert torch.allclose(reward_of(named)(frames[..., 24:72], "a red ball"), crop, atol=1e-4)
    record = drawn("--decoding", "sdvg", "--threshold", "-inf", "--reward", named)
    assert record["drafted"] == BLOCKS - 1 and record["reward_s"] > 0


def test_a_learned_router_is_read_from_its_folder(tmp_path: Path) -> None:
    from mmspec.video.routing.learned import Advantage, AdvantageConfig

    Advantage(AdvantageConfig(hidden=4)).save_pretrained(tmp_path / "router")
    words = ("--decoding", "sdvg", "--router", f"learned:model={tmp_path / 'router'},gain=inf")
    assert drawn(*words)["target_blocks"] == 1


@pytest.mark.parametrize(
    "words", ["--init frame", "--decoding sjd --window 4 --init repeat_frame", "--decoding ar --top-k 3 --guidance 1"]
)
def test_videos_of_codes_are_drawn_exactly(words: str) -> None:
    record = drawn("--model", "video/tokens", *words.split())
    assert record["exact"] and record["frames"] == 3 and record["plain_passes"] == 12
    plain = "ar" in words.split()
    assert (record["target_passes"] == 12) == plain and record["guidance"] == (1.0 if plain else 2.0)


def test_a_folder_of_codes_is_drawn_and_one_of_pictures_refused(tmp_path: Path) -> None:
    from tests.evaluate.tiny_images import tiny_image_zoo

    tiny_video_zoo()["video/tokens"].save_pretrained(tmp_path / "codes")
    assert drawn("--model", str(tmp_path / "codes"), "--temperature", "0.5")["temperature"] == 0.5
    tiny_image_zoo()["t2i"].save_pretrained(tmp_path / "pictures")
    said = refused("--model", str(tmp_path / "pictures"))
    assert "which draws pictures, call `mmspec image`" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "video.avi"), "--out: expected a file that ends in .mp4 or .gif, got 'video.avi', rename it"),
        (
            ("--model", "t2i"),
            "--model: expected one of video, video/tokens or a folder with a saved pipeline, got 't2i'",
        ),
        (("--decoding", "scd"), "--decoding: expected one of ar, draft, sdvg for zoo video"),
        (("--decoding", "sdvg"), "--threshold: expected it or --router for --decoding sdvg, got none"),
        (("--decoding", "sdvg", "--threshold", "0", "--router", "strided:budget=2"), "got both"),
        (("--threshold", "0"), "--threshold: expected --decoding sdvg, got 'ar', leave --threshold out"),
        (("--sync", "lazy"), "--sync: expected --decoding sdvg"),
        (("--decoding", "sdvg", "--threshold", "0", "--sync", "now"), "--sync: expected one of lazy, eager, rebuilt"),
        (("--decoding", "sdvg", "--threshold", "0", "--reduction", "max"), "--reduction: expected one of min, mean"),
        (("--decoding", "sdvg", "--threshold", "nan"), "threshold: expected a number or an infinity, got nan"),
        (("--decoding", "sdvg", "--router", "magic"), "--router: expected one of threshold, relative, strided"),
        (("--decoding", "sdvg", "--router", "strided"), "--router: expected strided:budget=..., got 'strided'"),
        (("--decoding", "sdvg", "--router", "strided:budget=x"), "--router: expected settings of strided that fit"),
        (("--decoding", "sdvg", "--router", "strided:budget=0"), "expected 1 or more, since the first block"),
        (("--decoding", "sdvg", "--router", "hybrid:run=2"), "--router: expected hybrid:run=...,least=..."),
        (
            ("--reward", "magic"),
            "--reward: expected one of reward, clip, or imagereward:FILE, hpsv2:FILE, pickscore:FILE, got",
        ),
        (("--reward", "imagereward"), "--reward: expected one of reward, clip, or imagereward:FILE"),
        (("--reward", "hpsv2:none.safetensors"), "--reward: expected a file, got 'none.safetensors', which is none"),
        (("--blocks", "0"), "--blocks: expected a number of at least 1, got 0"),
        (("--size", "8"), "--size: expected height and width, got '8'"),
        (("--size", "8x7"), "size: expected height and width, multiples of 2"),
        (("--switch", "a blue square"), "--switch: expected a block from 1 on and its prompt"),
        (("--switch", "9=a blue square"), "switch: expected blocks 0 to 3, got 9"),
        (("--fps", "0"), "--fps: expected a number of at least 1, got 0"),
        (("--window", "8"), "--window: expected a model of codes, got 'video', leave --window out"),
        (("--temperature", "1"), "--temperature: expected a model of codes"),
        (("--model", "video/tokens", "--stream"), "--stream: expected a model of blocks, got 'video/tokens'"),
        (("--model", "video/tokens", "--threshold", "0"), "--threshold: expected a model of blocks"),
        (("--model", "video/tokens", "--decoding", "sdvg"), "--decoding: expected one of ar, sjd, scd"),
        (("--model", "video/tokens", "--top-p", "0"), "--top-p: expected a number above 0 and up to 1"),
        (("--model", "video/tokens", "--filter-order", "magic"), "--filter-order: expected one of top_k_first"),
    ],
)
def test_what_does_not_apply_is_refused(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(*words)


def test_models_without_weights_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["t2i"])
    said = refused()
    assert "--model: expected weights of the zoo's video, got none yet, run `mmspec zoo build video` or name" in said
    result = runner.invoke(app, ["bench", "video"])
    assert result.exit_code != 0 and "--model: expected weights of the zoo's video, got none yet" in result.stderr


def test_without_ffmpeg_a_gif_is_written_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(film, "find_spec", lambda name: None)
    result = invoked(out="film.mp4")
    assert result.exit_code == 0 and frames_of("film.gif") == FRAMES and not Path("film.mp4").exists()
    assert result.stderr.startswith("MP4 needs an ffmpeg with H.264 (libx264)") and "mmspec[video]" in result.stderr
    assert json.loads(Path("out.json").read_text())["out"] == "film.gif"


@pytest.mark.skipif(not FFMPEG, reason="imageio-ffmpeg is not installed")
def test_an_mp4_holds_the_frames(tmp_path: Path) -> None:
    from imageio_ffmpeg import count_frames_and_secs, read_frames

    shades = np.repeat(np.arange(20, 240, 20, dtype=np.uint8), 33 * 64 * 3).reshape(11, 33, 64, 3)
    film.write_film(shades, tmp_path / "shades.mp4", 10)
    frames, seconds = count_frames_and_secs(tmp_path / "shades.mp4")
    assert frames == 11 and seconds == pytest.approx(1.1, abs=0.05)
    about, *read = read_frames(tmp_path / "shades.mp4")
    assert about["codec"] == "h264" and about["size"] == (64, 34)  # odd sides are made even
    means = [np.frombuffer(one, np.uint8).reshape(34, 64, 3)[:32].mean() for one in read]
    assert means == pytest.approx(list(range(20, 240, 20)), abs=4)
    assert drawn(out="film.mp4")["out"] == "film.mp4" and count_frames_and_secs("film.mp4")[0] == FRAMES


@pytest.mark.skipif(not FFMPEG, reason="imageio-ffmpeg is not installed")
def test_an_ffmpeg_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ffmpeg"
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(script))
    for said, kind, told in (
        (
            "libx264 is unknown",
            ValueError,
            "expected ffmpeg to write '.*film.mp4' with libx264, got 'libx264 is unknown'",
        ),
        (
            "av_write: No space left on device",
            Unwritten,
            "expected to write '.*film.mp4', got 'No space left on device'",
        ),
    ):
        script.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{said}' >&2\nexit 1\n")
        script.chmod(0o755)
        with pytest.raises(kind, match=told):
            film.write_film(np.zeros((2, 8, 8, 3), np.uint8), tmp_path / "film.mp4", 10)
        assert not list(tmp_path.glob("*.mp4"))


def test_bench_writes_what_it_shows() -> None:
    asked = ("--prompts", "1", "--repeats", "1", "--methods", "strided", "--threads", "1", "--blocks", "3")
    files = ("--json", "bench.json", "--markdown", "bench.md")
    result = runner.invoke(app, ["bench", "video", *asked, *files])
    assert result.exit_code == 0, (result.stderr, result.exception)
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert [row["key"] for row in rows] == ["ar", "strided-0.75"]
    assert all(f"| {row['seconds']} |" in Path("bench.md").read_text() and row["blocks"] == 3 for row in rows)


def test_naming_the_command_loads_no_heavy_library() -> None:
    code = (
        "import sys, mmspec.cli.video, mmspec.evaluate.video.config\n"
        "print([name for name in ('torch', 'transformers', 'diffusers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", (done.stdout, done.stderr)
