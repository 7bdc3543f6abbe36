"""Code that came with a checkpoint never runs, also where somebody answers "y" to whatever is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_images import captioned
from tests.evaluate.tiny_zoo import tiny_zoo
from tests.imagegen.adapters.models import tiny as tiny_model
from tests.imagegen.adapters.processors import processor as image_processor
from tests.imagegen.llamagen.tiny import CAPTION

POISON = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import PreTrainedConfig as Config, PreTrainedTokenizerFast as Tokenizer, ProcessorMixin as Processor
from transformers import PreTrainedModel as Model, CLIPImageProcessor as ImageProcessor
"""


def change(file: Path, **fields: object) -> None:
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**known, **fields}))


def config(folder: Path) -> None:
    """A model of a type that transformers does not know."""
    names = {"AutoConfig": "poison.Config", "AutoModelForImageTextToText": "poison.Model"}
    change(folder / "config.json", model_type="unheard_of", auto_map=names)


def processor(folder: Path) -> None:
    change(folder / "processor_config.json", processor_class="Unheard", auto_map={"AutoProcessor": "poison.Processor"})


def tokenizer(folder: Path) -> None:
    """A model of known type has a tokenizer of transformers' own, whatever the files say."""
    if (folder / "config.json").is_file():
        change(folder / "config.json", model_type="unheard_of")
    names = {"AutoTokenizer": ["poison.Tokenizer", "poison.Tokenizer"]}
    change(folder / "tokenizer_config.json", tokenizer_class="Unheard", auto_map=names)


def picture_reader(folder: Path) -> None:
    known = json.loads((folder / "processor_config.json").read_text())
    known["image_processor"] = {
        "image_processor_type": "Unheard",
        "auto_map": {"AutoImageProcessor": "poison.ImageProcessor"},
    }
    (folder / "processor_config.json").write_text(json.dumps(known))


def refused(folder: Path, *arguments: str) -> None:
    """The command ends with one sentence, asks nothing and runs nothing of the poisoned folder."""
    marker = folder.parent / "ran"
    for place in (folder, folder / "tokenizer"):
        if place.is_dir():
            (place / "poison.py").write_text(POISON.format(marker=str(marker)))
    result = CliRunner().invoke(app, list(arguments), input="y\n" * 9)
    assert not marker.exists(), "the checkpoint's code ran"
    assert result.exit_code == 2 and "wish to run" not in result.stdout + result.stderr, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and str(folder) in line and "its own" in line and "never run" in line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that would load."""
    model, parts = tiny_zoo()["vlm"]
    model.save_pretrained(tmp_path / "model")
    parts.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("poisoned", [config, processor, tokenizer, picture_reader])
def test_a_model_to_caption_with(poisoned, folder: Path) -> None:
    poisoned(folder)
    Image.new("RGB", (16, 16), "navy").save(folder.parent / "a.png")
    refused(folder, "caption", str(folder.parent / "a.png"), "--model", str(folder))


@pytest.mark.parametrize("poisoned", [config, processor, tokenizer])
def test_a_target_to_train_for(poisoned, folder: Path) -> None:
    poisoned(folder)
    data = folder.parent / "data.jsonl"
    data.write_text('{"text": "hello"}\n' * 12)
    common = ("train", "vlm-drafter", "--kind", "eagle2", "--steps", "1", "--data", str(data))
    refused(folder, *common, "--target", str(folder), "--out", str(folder.parent / "out"))


@pytest.mark.parametrize("poisoned", [processor, tokenizer])
def test_an_image_model_of_transformers(poisoned, tmp_path: Path) -> None:
    tiny_model("janus").save_pretrained(tmp_path / "model")
    image_processor("janus").save_pretrained(tmp_path / "model")
    poisoned(tmp_path / "model")
    refused(
        tmp_path / "model", "image", "a red cube", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "a.png")
    )


def test_the_caption_tokenizer_of_an_image_pipeline(tmp_path: Path) -> None:
    captioned(CAPTION).save_pretrained(tmp_path / "model")
    tokenizer(tmp_path / "model" / "tokenizer")
    refused(
        tmp_path / "model", "image", "a red cube", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "a.png")
    )
