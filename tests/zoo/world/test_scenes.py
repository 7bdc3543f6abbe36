from __future__ import annotations

import numpy as np
import pytest

from mmspec.zoo.world.captions import LONGEST, SHORTEST, Claim, brief_caption, caption, parse_caption, truth
from mmspec.zoo.world.glyphs import digit_samples
from mmspec.zoo.world.language import count_tokens
from mmspec.zoo.world.questions import QUESTION_KINDS, question
from mmspec.zoo.world.render import render, render_array, thing_mask
from mmspec.zoo.world.scene import EVAL_SEEDS, EVAL_START, TRAIN_SEEDS, SceneConfig, is_eval_seed, sample_scene

SEEDS = [*range(100), *range(EVAL_START, EVAL_START + 100)]


def test_everything_is_a_function_of_the_seed():
    for seed in SEEDS[::20]:
        first, second = sample_scene(seed), sample_scene(seed)
        assert first == second
        assert np.array_equal(render_array(first), render_array(second))
        assert caption(first, 3) == caption(second, 3)
        assert brief_caption(first, 3) == brief_caption(second, 3)
        assert [question(first, i) for i in range(5)] == [question(second, i) for i in range(5)]
    assert caption(sample_scene(0), 1) != caption(sample_scene(0), 2)


def test_training_and_evaluation_are_disjoint():
    assert TRAIN_SEEDS[-1] < EVAL_SEEDS[0]
    assert not is_eval_seed(TRAIN_SEEDS[-1]) and is_eval_seed(EVAL_SEEDS[0])
    for digit in range(10):
        assert not set(digit_samples(digit, False)) & set(digit_samples(digit, True))
    for seed in SEEDS:
        for thing in sample_scene(seed).things:
            if thing.is_digit:
                assert thing.sample in digit_samples(int(thing.kind), seed >= EVAL_START)
    with pytest.raises(ValueError, match="TRAIN_SEEDS or EVAL_SEEDS"):
        sample_scene(-1)


def test_pictures_are_96_pixel_rgb_with_every_object_inside():
    for seed in SEEDS[:40]:
        scene = sample_scene(seed)
        assert render(scene).size == (96, 96) and render(scene).mode == "RGB"
        assert 2 <= len(scene.things) <= 6
        assert [thing.cell for thing in scene.things] == sorted({thing.cell for thing in scene.things})
        for thing in scene.things:
            assert 0 <= thing.x and thing.x + thing.pixels <= 96 and 0 <= thing.y and thing.y + thing.pixels <= 96
            assert 0.08 < thing_mask(thing).mean() < 0.95


def test_captions_read_back_as_their_scene():
    for seed in SEEDS:
        scene = sample_scene(seed)
        for reverse in (False, True):
            assert sorted(parse_caption(caption(scene, seed, reverse))) == truth(scene)


def test_caption_lengths():
    lengths = [count_tokens(caption(sample_scene(seed), seed)) for seed in SEEDS]
    assert SHORTEST <= min(lengths) and max(lengths) <= LONGEST


def test_the_parser_skips_sentences_without_a_place():
    text = "There are two objects. The red star is above the blue 7. Nothing else. At the upper left we see a red star."
    assert parse_caption(text) == [Claim(0, "red", "star")]
    assert parse_caption("") == []
    pair = "In the center we see a small cyan handwritten 8, and in the very middle there is an orange heart with dots."
    assert parse_caption(pair) == [Claim(4, "cyan", "8"), Claim(4, "orange", "heart")]


@pytest.mark.parametrize("kind", QUESTION_KINDS)
def test_answers_hold_their_fact(kind):
    for seed in SEEDS[::4]:
        made = question(sample_scene(seed), seed, kind)
        assert made.fact.lower() in made.answer.lower()
        assert made.prompt.endswith(("?", "."))


def test_scene_config_is_checked():
    assert len(sample_scene(0, SceneConfig(9, 9)).things) == 9
    with pytest.raises(ValueError, match="least <= most"):
        SceneConfig(3, 2)
    with pytest.raises(ValueError, match="digit_share"):
        SceneConfig(digit_share=1.5)
