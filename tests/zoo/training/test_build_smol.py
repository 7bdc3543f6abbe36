"""The builder of `vlm/smol`: its rows, its steps and its resumption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.zoo.architectures.smol import ProjectorSize, WindowProjector, compose, new_processor, picture_id
from mmspec.zoo.files.sized import load_sized
from mmspec.zoo.training.vlm import build_smol
from mmspec.zoo.training.vlm.build_smol import SMOL_CHAT, SmolRecipe, build, smol_row
from mmspec.zoo.training.vlm.conversations import ConversationEncoder
from mmspec.zoo.training.vlm.projector import answer_states
from mmspec.zoo.world.render import render
from tests.zoo import tiny_smol

RECIPE = SmolRecipe(steps=4, batch=1, start_scenes=20, dtype="float32", brief=0.5)


@pytest.fixture(autouse=True)
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_smol, "read_tower", lambda folder: tiny_smol.tower())


@pytest.mark.parametrize("is_brief", (True, False))
def test_every_branch_matches_a_chat_with_the_processor(is_brief: bool) -> None:
    tokenizer, projector = tiny_smol.tokenizer(), tiny_smol.projector()
    tower, language, picture = tiny_smol.tower(), tiny_smol.language(), picture_id(tokenizer)
    model, processor = compose(tower, projector, language, picture), new_processor(tokenizer)
    row = smol_row(11, is_brief)
    rows = ConversationEncoder(tokenizer, SMOL_CHAT)([row])
    with torch.no_grad():
        states, targets = answer_states(projector, tower, language, rows, picture)
    for turns in row.branches:
        chat = []
        for index, (prompt, answer) in enumerate(turns):
            parts = [*([{"type": "image"}] if index == 0 else []), {"type": "text", "text": prompt}]
            chat += [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
        inputs = processor(
            images=[render(row.scenes[0])], text=[processor.apply_chat_template(chat)], return_tensors="pt"
        )
        with torch.no_grad():
            plain = model.model(**inputs).last_hidden_state[0]
        spots = _answer_spots(tokenizer, inputs["input_ids"][0].tolist())
        count = len(spots)
        assert inputs["input_ids"][0, spots].tolist() == targets[:count].tolist()
        assert torch.allclose(plain[[spot - 1 for spot in spots]], states[:count], atol=1e-4)
        states, targets = states[count:], targets[count:]
    assert len(targets) == 0


def _answer_spots(tokenizer, ids: list[int]) -> list[int]:
    """Places of the assistant's tokens and of what ends them."""
    names, spots, inside = tokenizer.convert_ids_to_tokens(ids), [], False
    for index, name in enumerate(names):
        if inside:
            spots.append(index)
        if name == "Ċ" and names[index - 1] == "assistant":
            inside = True
        elif name == "<|im_end|>":
            inside = False
    return spots


def test_a_stopped_build_goes_on_as_if_nothing_had_been_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = (tiny_smol.language(), tiny_smol.tokenizer())
    card = build(tmp_path / "out", tmp_path / "whole", language, tmp_path, RECIPE)
    assert card == json.loads((tmp_path / "out" / "card.json").read_text()) and card["training"]["loss"] > 0
    whole = load_sized(ProjectorSize, WindowProjector, tmp_path / "out")
    encode, steps = build_smol.smol_row, []

    def stopping(seed: int, is_brief: bool):
        steps.append(is_brief)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return encode(seed, is_brief)

    monkeypatch.setattr(build_smol, "smol_row", stopping)
    monkeypatch.setattr(SmolRecipe, "plan", lambda self: replace(_PLAN(self), save_every_s=0.0))
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "again", tmp_path / "cut", language, tmp_path, RECIPE)
    build(tmp_path / "again", tmp_path / "cut", language, tmp_path, RECIPE)
    assert steps == [True, True, False, False, False]
    resumed = load_sized(ProjectorSize, WindowProjector, tmp_path / "again")
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


_PLAN = SmolRecipe.plan


def test_the_text_model_is_not_trained_and_the_card_holds_the_measurements(tmp_path: Path) -> None:
    language = (tiny_smol.language(), tiny_smol.tokenizer())
    before = {name: value.clone() for name, value in language[0].state_dict().items()}

    def measure(model, processor) -> dict[str, float]:
        assert model.model.multi_modal_projector.tokens_per_image == 36 and processor.tokenizer.padding_side == "left"
        return {"objects_right": 0.5}

    recipe = replace(RECIPE, steps=2, dtype="bfloat16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmspec.zoo.files.vlm.read_tower", lambda folder: tiny_smol.tower())
        card = build(tmp_path / "out", tmp_path / "work", language, tmp_path, recipe, measure=measure)
    assert card["evaluation"] == {"objects_right": 0.5} and card["recipe"]["steps"] == 2
    assert all(torch.equal(value, before[name]) for name, value in language[0].state_dict().items())


def test_recipes_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="recipe: expected brief"):
        SmolRecipe(brief=1.5)
