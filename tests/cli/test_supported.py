"""`mmspec supported`: a summary, the classes of a family, or every table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.run.class_search import all_models, matching_models, name_parts


def shown(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["supported", *words])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


def test_without_a_name_it_is_a_short_summary_that_says_how_to_ask_further() -> None:
    text = shown()
    assert len(text.splitlines()) < 60 and "text and pictures" in text
    assert all(part in text for part in ("mmspec supported qwen2.5-vl", "mmspec supported --all", "mmspec check MODEL"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("qwen2.5-vl", "Qwen2_5_VLForConditionalGeneration"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "Qwen2_5_VLForConditionalGeneration"),
        ("LlavaForConditionalGeneration", "LlavaForConditionalGeneration"),
        ("llava-hf/llava-1.5-7b-hf", "LlavaForConditionalGeneration"),
        ("google/gemma-3-4b-it", "Gemma3ForConditionalGeneration"),
        ("meta-llama/Llama-3.1-8B", "LlamaForCausalLM"),
        ("janus", "JanusForConditionalGeneration (image model)"),
        ("helios", "Helios (video model)"),
    ],
)
def test_a_family_a_class_or_a_hub_id_finds_its_classes(name: str, wanted: str) -> None:
    matches = matching_models(name)
    assert wanted in [match.name for match in matches] and len(matches) < 30
    assert all(value.strip() for match in matches for value in match.facts.values())


def test_the_classes_of_a_family_are_shown_in_full_and_written(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    text = shown("qwen2.5-vl", "--json", str(file))
    (record,) = [load for load in json.loads(file.read_text())["models"] if load["name"].startswith("Qwen2_5_VL")]
    assert record["name"] in text and "yes" in record["facts"]["supported"] and "eagle" in record["facts"]["drafters"]
    assert max(map(len, text.splitlines())) <= 100


def test_a_refused_class_says_why() -> None:
    assert "no: " in shown("AXK2ForCausalLM") and "got indexed_attention" in " ".join(shown("AXK2").split())


def test_an_unknown_name_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert "NAME: expected a family, class or hub id" in shown("zebra9000", "--json", str(file), code=2)
    assert not file.exists() and "--all: expected no NAME beside it" in shown("llava", "--all", code=2)


def test_every_table_is_behind_all() -> None:
    text = shown("--all")
    assert all(
        part in text for part in ("checkerboard", "hybrid:run=2,least=0.5", "image-text class", "refused classes")
    )


def test_parts_of_a_name_are_tried_from_long_to_short() -> None:
    assert list(name_parts("a/Qwen2-VL-7B")) == ["qwen2vl7b", "qwen2vl", "vl7b", "qwen2"]
    assert all(make().name == name for name, make in list(all_models().items())[::25])
