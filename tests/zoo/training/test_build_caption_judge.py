"""The judge of captions: its labels follow the scene graph, and its build writes a head that ships with its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmspec import zoo
from mmspec.vlm.drafters.judge_head import JudgeHead
from mmspec.zoo.files.registry import read
from mmspec.zoo.training.vlm.build_judge import SEED, JudgeRequests, build, labels_of
from mmspec.zoo.world.captions import caption
from mmspec.zoo.world.scene import is_eval_seed, sample_scene


@pytest.mark.whole
def test_labels_have_an_entry_a_token_and_find_the_changed_word() -> None:
    processor = zoo.load("vlm")[1]
    scene = sample_scene(SEED)
    text = caption(scene, 0)
    color = scene.things[0].color
    other = next(c for c in ("red", "blue", "green", "yellow") if all(c != thing.color for thing in scene.things))
    changed = text.replace(f"{color} {scene.things[0].kind}", f"{other} {scene.things[0].kind}")
    ids = {f"judge-{n}": processor.tokenizer(t, add_special_tokens=False)["input_ids"] for n, t in ((0, text),)}
    assert all(labels_of(processor, ids)["judge-0"])
    ids["judge-0"] = processor.tokenizer(changed, add_special_tokens=False)["input_ids"]
    right = labels_of(processor, ids)["judge-0"]
    words = {processor.decode([i]).strip() for i, good in zip(ids["judge-0"], right, strict=True) if not good}
    assert len(right) == len(ids["judge-0"]) and words <= {other} and len(words) == (changed != text)


@pytest.mark.whole
def test_a_short_build_writes_a_head_and_its_card(tmp_path: Path) -> None:
    card = build(
        tmp_path / "out", tmp_path / "work", zoo.load("vlm"), zoo.load("vlm/small"), captions=6, held_out=2, batch=2
    )
    assert card["captions"] == 6 and card == json.loads((tmp_path / "out/card.json").read_text())
    head = read("vlm/judge", tmp_path / "out")
    assert isinstance(head, JudgeHead) and head.config.hidden_size == 256
    assert card["tokens"] > card["wrong_tokens"] > 0


def test_the_shipped_head_is_small_and_its_scenes_are_no_evaluation_scenes() -> None:
    head = zoo.load("vlm/judge")
    assert sum(value.numel() for value in head.parameters()) == 514 and head.linear.weight.isfinite().all()
    assert not any(is_eval_seed(SEED + index) for index in (0, 511))
    assert JudgeRequests(2)[1].images and torch.isfinite(head.accepts(torch.zeros(1, 256))).all()
