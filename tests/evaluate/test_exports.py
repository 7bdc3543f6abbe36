"""What a run has made lies where GenEval, DPG-Bench and VBench look for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.exports import export_run
from tests.evaluate.report.kept import failed, header, picture, sample, with_media, written

TOLD = {"prompt": "a photo of a bench", "tag": "single_object", "include": [{"class": "bench", "count": 1}]}


def run(folder: Path, samples: int = 4, **more: object) -> Records:
    """Two prompts, whose samples are of different greys; the second cell has failed."""
    kept = []
    for prompt in (0, 1):
        asked = {"text": f"a bench {prompt}", "source": TOLD if prompt == 0 else None}
        for number in range(samples):
            one = sample("ar", prompt, number=number, asked=asked, **more)
            kept.append(with_media(folder, one, picture(100 * prompt + number)))
    return written(folder, [*kept, failed("eagle", 0)])


def test_geneval(tmp_path: Path) -> None:
    said = export_run("geneval", run(tmp_path / "run"), tmp_path / "out")
    (cell,) = (tmp_path / "out").iterdir()
    assert "8 samples of 1 cells as geneval reads them" in said and cell.name.startswith("t2i-")
    assert [path.name for path in sorted(cell.iterdir())] == ["00000", "00001"]
    assert json.loads((cell / "00000" / "metadata.jsonl").read_text()) == TOLD
    assert json.loads((cell / "00001" / "metadata.jsonl").read_text()) == {"prompt": "a bench 1"}
    files = sorted((cell / "00001" / "samples").iterdir())
    assert [file.name for file in files] == ["0000.png", "0001.png", "0002.png", "0003.png"]
    assert [Image.open(file).getpixel((0, 0))[0] for file in files] == [100, 101, 102, 103]


def test_dpg_tiles_the_samples_of_a_prompt(tmp_path: Path) -> None:
    export_run("dpg", run(tmp_path / "run"), tmp_path / "out")
    (cell,) = (tmp_path / "out").iterdir()
    assert sorted(path.name for path in cell.iterdir()) == ["p0.png", "p1.png"]
    whole = np.asarray(Image.open(cell / "p1.png"))
    assert whole.shape == (16, 16, 3)
    assert [int(whole[y, x, 0]) for y in (0, 8) for x in (0, 8)] == [100, 101, 102, 103]


def test_dpg_needs_a_square_of_samples(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 1, 4 or 9 samples of every prompt, got 2, run with --samples 4"):
        export_run("dpg", run(tmp_path / "run", samples=2), tmp_path / "out")


@pytest.mark.parametrize("ffmpeg", [True, False])
def test_vbench_names_films_by_their_prompts(ffmpeg: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ffmpeg:
        pytest.importorskip("imageio_ffmpeg", reason='ffmpeg comes with "mmspec[video]"')
    else:
        monkeypatch.setattr("mmspec.evaluate.exports.has_mp4_writer", lambda: False)
    film = np.zeros((3, 16, 16, 3), np.uint8)
    one = sample(
        "ar", 0, shows="film", model="video", domain="video", asked={"text": "a person, swimming", "source": None}
    )
    found = written(tmp_path / "run", [with_media(tmp_path / "run", one, film)], header("video"))
    export_run("vbench", found, tmp_path / "out")
    (cell,) = (tmp_path / "out").iterdir()
    assert [path.name for path in cell.iterdir()] == [f"a person, swimming-0.{'mp4' if ffmpeg else 'gif'}"]


@pytest.mark.parametrize("text", ["../../etc/passwd", "a/b", "..", "x" * 300, "a\0b"])
def test_a_prompt_that_is_no_file_name_is_refused(text: str, tmp_path: Path) -> None:
    one = sample("ar", 0, shows="film", model="video", domain="video", asked={"text": text, "source": None})
    film = np.zeros((2, 8, 8, 3), np.uint8)
    found = written(tmp_path / "run", [with_media(tmp_path / "run", one, film)], header("video"))
    with pytest.raises(ValueError, match="expected prompts that can be names of files"):
        export_run("vbench", found, tmp_path / "out")


def test_runs_that_a_judge_cannot_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--export: expected a run that has made a film"):
        export_run("vbench", run(tmp_path / "run", samples=1), tmp_path / "out")
    with pytest.raises(ValueError, match="--export: expected one of geneval, dpg, vbench, got 'magic'"):
        export_run("magic", run(tmp_path / "other", samples=1), tmp_path / "out")
