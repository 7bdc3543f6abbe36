"""Drafters for `vlm/smol`: they train on the captioner's own answers, and its text stays what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import mmspec
from mmspec.cli import app
from mmspec.zoo.architectures.smol import compose, new_processor, picture_id
from mmspec.zoo.files.registry import read
from mmspec.zoo.training.vlm.build_drafter import build
from mmspec.zoo.training.vlm.drafter_recipes import RECIPES, TARGETS
from tests.zoo import tiny_smol
from tests.zoo.drafters import drafters_of

CHAT = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "List the objects."}]}]


@pytest.fixture(scope="module")
def captioner():
    parts = tiny_smol.tower(), tiny_smol.projector(), tiny_smol.language(), picture_id(tiny_smol.tokenizer())
    return compose(*parts), new_processor(tiny_smol.tokenizer())


@pytest.mark.parametrize("name", ("msd", "dspark", pytest.param("vispec", marks=pytest.mark.whole)))
def test_a_drafter_trains_and_drafts(captioner, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"vlm/smol/{name}" in drafters_of("vlm/smol")
    asked = replace(TARGETS["vlm/smol"], pictures=4, texts=4, new_tokens=8)
    monkeypatch.setitem(TARGETS, "vlm/smol", asked)
    recipe = replace(RECIPES[f"vlm/smol/{name}"], steps=2, batch=2, eval_every=0)
    card = build(tmp_path / "out", tmp_path / "work", captioner, f"vlm/smol/{name}", recipe)
    assert card["target"] == "vlm/smol" and card["training"]["loss"] > 0
    drafter, (model, processor) = read(f"vlm/smol/{name}", tmp_path / "out"), captioner
    text = processor.apply_chat_template(CHAT, add_generation_prompt=True)
    inputs = dict(processor(images=[asked.held_out[0].images[0]], text=[text], return_tensors="pt"))
    wanted = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    assert torch.equal(mmspec.generate(model, drafter=drafter, max_new_tokens=20, do_sample=False, **inputs), wanted)


def test_the_command_captions_with_it(captioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.load", {"vlm/smol": captioner}.__getitem__)
    Image.new("RGB", (40, 50), "red").save(tmp_path / "red.png")
    command = ["caption", str(tmp_path / "red.png"), "--model", "vlm/smol", "--max-new-tokens", "6"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "vlm/smol" in result.output


def test_the_command_names_the_build_command_of_a_missing_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.zoo.files.registry.WEIGHTS", tmp_path)
    Image.new("RGB", (40, 50), "red").save(tmp_path / "red.png")
    result = CliRunner().invoke(app, ["caption", str(tmp_path / "red.png"), "--model", "vlm/smol"])
    assert result.exit_code != 0 and "mmspec zoo build vlm/smol" in " ".join(result.output.split())
