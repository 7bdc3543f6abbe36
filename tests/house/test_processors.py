"""Processors of transformers fetch strings and read paths: every place that hands them pictures checks these first."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import mmspec
from mmspec.io.images import ImageError
from mmspec.run.vlm_requests import encode_turns
from mmspec.vlm.training.examples import Example, JsonExamples, encode
from tests.house.tree import modules, nodes

ADDRESS = "http://127.0.0.1:9/a.png"
LOADERS = {"load_image", "load_images", "load_video", "load_audio", "fetch_images", "fetch_videos", "urlopen"}


def hands_over(source: str) -> list[int]:
    """The lines that call a processor with pictures."""
    calls = (node for node in nodes(source) if isinstance(node, ast.Call))
    named = ((ast.unparse(node.func).rpartition(".")[2], node) for node in calls)
    return [
        node.lineno
        for name, node in named
        if (name.endswith("processor") and any(word.arg in ("images", "videos") for word in node.keywords))
        or name in LOADERS
    ]


def test_the_scan_finds_calls_of_processors_and_loaders() -> None:
    assert hands_over("self.processor(images=a, text=b)\nprocessor(text=b)\nimage_utils.load_image(a)") == [1, 3]


def test_pictures_are_checked_in_every_file_that_hands_them_to_a_processor() -> None:
    files = {module: path.read_text(encoding="utf-8") for module, path in modules()}
    handing = {module for module, source in files.items() if hands_over(source)}
    assert {"mmspec.vlm.conversation.messages", "mmspec.vlm.training.examples"} <= handing
    assert not [module for module in handing if "check_images(" not in files[module]]


@pytest.mark.parametrize("item", (ADDRESS, Path("a.png"), None), ids=("address", "path", "None"))
def test_prompts_of_benches_and_training_take_no_address_for_a_picture(item: object) -> None:
    _, processor = mmspec.zoo.load("vlm")
    with pytest.raises(ImageError, match="images: expected .*open_image"):
        encode(processor, [Example("a", "What is this?", (item,))])
    with pytest.raises(ImageError, match="images: expected .*open_image"):
        encode_turns(processor, ["What is this?", "And now?"], ["A."], (item,))


@pytest.mark.parametrize("name", (3, None, {"url": ADDRESS}), ids=("number", "null", "dict"))
def test_a_file_of_examples_names_its_pictures(tmp_path: Path, name: object) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "What?", "images": [name]}))
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: expected"):
        JsonExamples(file)


@pytest.mark.parametrize("name", (ADDRESS, "file:///etc/hostname", "data:image/png;base64,iVBORw0KGgo="))
def test_an_address_in_a_file_of_examples_is_the_name_of_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "What?", "images": [name]}))
    with pytest.raises(ImageError, match="expected an image file, got no such file"):
        JsonExamples(file)[0]
