"""The Python of the cookbook runs as it stands, with tiny models in the place of published ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from PIL import Image

from mmspec.video import save_wan
from tests.docs.examples import ROOT
from tests.evaluate.tiny_continuous import captioned
from tests.evaluate.tiny_images import tiny_image_zoo
from tests.evaluate.tiny_video import saved
from tests.evaluate.tiny_zoo import tiny_zoo
from tests.video.tiny import wan

COOKBOOK = ROOT / "docs" / "cookbook"
TEXT = ("llava", "qwen2.5-vl", "qwen3.5", "gemma", "internvl")
KINDS = {"llava": "msd", "qwen2.5-vl": "vispec"}  # of the drafters whose kind a page names


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (COOKBOOK / f"{page}.md").read_text(encoding="utf-8"), re.S):
        # a class of the tiny model, and answers that it has positions for
        exec(block.replace("[207]", "[20]").replace("max_new_tokens=256", "max_new_tokens=24"), names)
    return names


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", TEXT)
def test_a_page_on_text_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.effect_noise((24, 24), 60).convert("RGB").save("photo.jpg")
    model, processor = tiny_zoo()["vlm"]
    loaded = []

    def drafter(name: str, target: object, kind: str | None = None) -> object:
        assert target is model
        loaded.append((name, kind))
        return tiny_zoo()["vlm/msd"]

    monkeypatch.setattr(hf.AutoModelForImageTextToText, "from_pretrained", lambda name, **how: model)
    monkeypatch.setattr(hf.AutoProcessor, "from_pretrained", lambda name: processor)
    monkeypatch.setattr("mmspec.vlm.load_drafter", drafter)
    session = run(page)["session"]
    assert session.drafter is tiny_zoo()["vlm/msd"]
    ((name, kind),) = loaded
    text = (COOKBOOK / f"{page}.md").read_text(encoding="utf-8")
    assert kind == KINDS.get(page) and (page == "internvl" or f"| `{name}` |" in text)


def test_the_page_on_llamagen_runs() -> None:
    tiny_image_zoo()["t2i"].save_pretrained("llamagen")
    names = run("llamagen")
    assert names["out"].stats.exact and not names["relaxed"].stats.exact and Path("fox.png").is_file()


def test_the_page_on_janus_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny_image_zoo()["t2i"]
    monkeypatch.setattr(hf.JanusForConditionalGeneration, "from_pretrained", lambda name, **how: "a Janus")
    monkeypatch.setattr(hf.AutoProcessor, "from_pretrained", lambda name: "its processor")
    monkeypatch.setattr("mmspec.imagegen.pipeline_for", lambda *parts: pipe if len(parts) == 2 else None)
    assert run("janus")["out"].stats.exact and Path("fox.png").is_file()


def test_the_page_on_mar_runs() -> None:
    for name, seed in (("mar-large", 0), ("mar-base", 1)):
        captioned(seed, "50").save_pretrained(name)
    names = run("mar")
    assert names["exact"].stats.exact and not names["relaxed"].stats.exact and Path("my-mar/model_index.json").is_file()


def test_the_page_on_wan_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    saved(Path("Wan2.1"))
    save_wan(wan(), "self-forcing")
    first, second = re.findall(r"```python\n(.*?)```", (COOKBOOK / "wan.md").read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(first.replace("(480, 832)", "(16, 16)"), names)
    shutil.copytree("wan-small", "wan-large")
    exec(second, names)
    assert names["out"].stats.target_blocks and not names["out"].stats.exact
