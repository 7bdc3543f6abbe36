"""Prompts that a chat model writes itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmspec.vlm.training.own_prompts import PromptSettings, user_turn_opening, write_own_prompts
from tests.vlm.tiny import tiny
from tests.vlm.training import test_text_targets

HOW = PromptSettings(longest=24, batch=8, seed=3)


def tokenizer(template: str | None = test_text_targets.JOINS):
    made = test_text_targets.tokenizer(template)
    made.pad_token = "\\"  # a token that the tiny model writes often
    return made


def model_of(made):
    torch.manual_seed(0)
    model = tiny("llama")
    model.generation_config.eos_token_id = made.pad_token_id
    return model


def test_a_turn_opens_where_the_text_of_the_user_begins() -> None:
    made = tokenizer()
    assert made.decode(user_turn_opening(made)) == "<user>"


def test_prompts_are_distinct_and_a_second_run_keeps_the_first(tmp_path: Path) -> None:
    made, file, told = tokenizer(), tmp_path / "work" / "prompts.jsonl", []
    model = model_of(made)
    few = [line["text"] for line in write_own_prompts(model, made, 5, file, HOW).lines]
    more = write_own_prompts(model, made, 12, file, HOW, told.append)
    texts = [line["text"] for line in more.lines]
    assert texts[:5] == few and len(set(texts)) == len(texts) == 12 == told[-1]
    assert [line["key"] for line in more.lines] == [f"own-{i}" for i in range(12)]
    assert all(4 <= len(made(text)["input_ids"]) < 24 and text == text.strip() for text in texts)


def test_a_model_that_never_ends_a_prompt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenizer()
    model = model_of(made)
    endless = lambda m: lambda ids, **how: torch.cat([ids, torch.full((len(ids), 24), 40)], 1)  # noqa: E731
    monkeypatch.setattr("mmspec.vlm.training.own_prompts.class_generate", endless)
    with pytest.raises(ValueError, match="^prompts: expected 3 different prompts, got 0 and then none in 20 batches"):
        write_own_prompts(model, made, 3, tmp_path / "prompts.jsonl", HOW)


def test_a_file_with_a_torn_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"text": "hello there"}) + '\n{"text": "hel')
    made = tokenizer()
    with pytest.raises(ValueError, match="line 2: expected a JSON object"):
        write_own_prompts(model_of(made), made, 3, file, HOW)


@pytest.mark.parametrize("template", (None, "{{ messages[0]['content'] | length }}"))
def test_templates_without_a_recognisable_user_turn_are_refused(template: str | None) -> None:
    with pytest.raises(ValueError, match="^prompts: expected a"):
        user_turn_opening(tokenizer(template))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="^(longest|batch): expected at least"):
        PromptSettings(longest=3)
