"""What is taught of moving scenes is what their frames show."""

from __future__ import annotations

import torch

from mmspec.zoo.training.facts import VIDEO_FACTS, VIDEO_HEADS, look_labels
from mmspec.zoo.world.scene import COLORS, KINDS
from mmspec.zoo.world.video import DIRECTIONS, LOOKS, SPEEDS, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt, video_prompt_tokenizer

COLOR_NAMES = tuple(COLORS)
SCENES = [sample_video_scene(seed) for seed in range(12)]


def test_facts_distinguish_each_scene_by_looks_and_by_the_motion_of_each_color() -> None:
    found = VIDEO_FACTS.facts(SCENES)
    for row, scene in enumerate(SCENES):
        told = {COLOR_NAMES[c]: int(d) for c, d in enumerate(found["direction"][row]) if d < len(DIRECTIONS)}
        assert told == {m.color: tuple(DIRECTIONS).index(m.direction) for m in scene.movers}
        assert found["looks"][row].nonzero()[:, 0].tolist() == sorted(m.look for m in scene.movers)
        assert (found["speed"][row] < len(SPEEDS)).sum() == len(scene.movers)
        for mover in scene.movers:
            assert (
                KINDS[mover.look // len(COLORS)] == mover.kind and COLOR_NAMES[mover.look % len(COLORS)] == mover.color
            )


def test_heads_that_know_the_facts_have_no_loss() -> None:
    wanted = VIDEO_FACTS.facts(SCENES)
    logits = {"looks": wanted["looks"] * 60 - 30}
    for name, values in (("direction", len(DIRECTIONS) + 1), ("speed", len(SPEEDS) + 1)):
        logits[name] = torch.nn.functional.one_hot(wanted[name], values).float().mul(40).flatten(1)
    for name in ("tone", "backdrop"):
        logits[name] = torch.nn.functional.one_hot(wanted[name], VIDEO_HEADS[name]).float() * 40
    assert {name: value.shape[1] for name, value in logits.items()} == VIDEO_HEADS
    loss, notes = VIDEO_FACTS.loss(logits, wanted)
    assert float(loss) < 1e-3 and notes == {"looks": 1.0, "direction": 1.0}
    logits["direction"] = logits["direction"].roll(1, 1)
    assert VIDEO_FACTS.loss(logits, wanted)[1] == {"looks": 1.0, "direction": 0.0}


def test_the_word_of_a_kind_carries_the_facts_of_its_object() -> None:
    tokenizer = video_prompt_tokenizer()
    texts = [video_prompt(scene, 1, 8) for scene in SCENES]
    ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    found = VIDEO_FACTS.token_facts(ids, SCENES, tokenizer)
    for row, (scene, text) in enumerate(zip(SCENES, texts, strict=True)):
        words = text.split()
        asked = (found["color"][row] >= 0).nonzero()[:, 0].tolist()
        assert [words[at] for at in asked] == sorted((m.kind for m in scene.movers), key=words.index)
        for at in asked:
            mover = next(m for m in scene.movers if (m.color, m.kind) == (words[at - 1], words[at]))
            assert tuple(DIRECTIONS)[found["direction"][row, at]] == mover.direction
            assert tuple(SPEEDS)[found["speed"][row, at]] == mover.speed


def test_codes_of_an_object_follow_it() -> None:
    labels = look_labels(SCENES, 5, 16).view(len(SCENES), 5, 16, 16)
    wide = look_labels(SCENES, 5, 16, border=1).view(len(SCENES), 5, 16, 16)
    for scene, frames, border in zip(SCENES, labels, wide, strict=True):
        assert set(frames.unique().tolist()) == {LOOKS, *(m.look for m in scene.movers)}
        assert (border[frames < LOOKS] < LOOKS).all() and (border < LOOKS).sum() > (frames < LOOKS).sum()
        for mover in scene.movers:
            for frame in range(5):
                rows, cols = (frames[frame] == mover.look).nonzero().float().mul(4).add(2).mean(0).tolist()
                x, y = mover.at(frame)
                assert abs(cols - x - mover.pixels / 2) <= 3 and abs(rows - y - mover.pixels / 2) <= 3
