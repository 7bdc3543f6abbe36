"""What `mmspec supported` says of videos is what they say of their own output."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec import video
from mmspec.cli import app
from mmspec.methods import names
from mmspec.run.model_kinds import BLOCKS, CODES
from mmspec.run.supported_decodings import router_records, video_model_records
from mmspec.video.routing.learned import Advantage, AdvantageConfig
from tests.evaluate.tiny_video import tiny_video_zoo, use_tiny_video
from tests.video.decoding.tiny import bright

NAMES = {BLOCKS: "video", CODES: "video/tokens"}
RECORDS = router_records()


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: f"{one['videos of']} {one['asked by']}")
def test_a_video_has_the_stated_distribution(record: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_video(monkeypatch)
    monkeypatch.chdir(tmp_path)
    if record["asked by"].startswith("--"):
        words = ("--model", NAMES[record["videos of"]], *shlex.split(record["asked by"]), "--json", "out.json")
        result = CliRunner().invoke(app, ["video", "a red circle", "--seed", "0", "--out", "out.gif", *words])
        assert result.exit_code == 0, result.stderr
        exact = json.loads(Path("out.json").read_text())["exact"]
    else:
        router = eval(record["asked by"], {"Learned": video.Learned, "model": Advantage(AdvantageConfig())})
        decoding = video.SDVG(tiny_video_zoo()["video/draft"], bright, router=router)
        exact = tiny_video_zoo()["video"]("a red circle", decoding=decoding, seed=0).stats.exact
    assert record["law"] == ("exact" if exact else "relaxed")


def test_every_router_of_the_command_line_is_listed_once() -> None:
    asked = [(record["videos of"], record["asked by"]) for record in RECORDS]
    assert len(set(asked)) == len(asked) and all(record["tested by"] for record in RECORDS)
    named = {text.split("--router ")[1].split(":")[0] for _, text in asked if "--router" in text}
    assert named | {"threshold", "learned"} == set(names("video", "router"))


def test_models_are_classes_that_exist() -> None:
    for record in video_model_records():
        assert hasattr(video, record["class"].split("(")[0])


def test_the_command_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["supported", "--all", "--json", "out.json"])
    assert result.exit_code == 0 and "hybrid:run=2,least=0.5" in result.stdout
    kept = json.loads(Path("out.json").read_text())
    assert kept["videos"] == RECORDS and kept["video models"] == video_model_records()
