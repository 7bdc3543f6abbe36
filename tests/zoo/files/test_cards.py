"""Cards of embedded models: what they say of a model holds, and the shipped ones name classes that are there."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from torch import nn

import mmspec
from mmspec.zoo.training.loop import rounded, write_card

CARDS = sorted(path.parent.name for path in mmspec.zoo.folder_of("vlm").parent.glob("*/card.json"))


def test_a_card_describes_the_model_and_the_passed_facts(tmp_path: Path) -> None:
    facts = {"steps": 3, "training": rounded({"loss": 0.123456})}
    card = write_card(tmp_path, "vq", nn.Linear(3, 2), "pictures", builds="t2i", **facts)
    assert json.loads((tmp_path / "card.json").read_text()) == card
    assert card["parameters"] == 8 and card["class"] == "torch.nn.modules.linear.Linear"
    assert card["command"] == "mmspec zoo build t2i" and card["training"] == {"loss": 0.1235}
    assert write_card(tmp_path, "clip", nn.Linear(1, 1), "pictures")["command"] == "mmspec zoo build clip"


@pytest.mark.parametrize("name", CARDS)
def test_a_shipped_card_names_a_class_that_is_there(name: str) -> None:
    path = mmspec.zoo.folder_of("vlm").parent / name / "card.json"
    module, _, kind = json.loads(path.read_text())["class"].rpartition(".")
    if module.startswith("mmspec"):
        assert isinstance(getattr(import_module(module), kind), type)
