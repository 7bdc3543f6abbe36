"""Held-out requests and their encoding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmspec.evaluate.vlm.requests import albums, held_out, questions
from mmspec.run.scenes import demo_scenes
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.zoo.world.scene import is_eval_seed
from tests.evaluate.tiny_zoo import byte_processor


def test_requests_are_a_function_of_count_and_seed() -> None:
    few, more, other = held_out(3), held_out(12), held_out(3, seed=1)
    assert [p.text for p in few] == [p.text for p in more[:3]]
    assert few[0].images[0].tobytes() == more[0].images[0].tobytes() != other[0].images[0].tobytes()
    assert [len(p.images) for p in more] == [1] * 9 + [3] + [1] * 2


def test_questions_ask_for_every_kind_of_fact() -> None:
    asked, again, other = questions(14), questions(7), questions(7, seed=1)
    assert [p.text for p in asked[:7]] == [p.text for p in again] != [p.text for p in other]
    assert all(len(p.images) == 1 for p in asked) and len({p.text for p in asked}) > 7
    assert asked[0].images[0].tobytes() != other[0].images[0].tobytes()


def test_albums_show_many_pictures_and_refer_to_an_early_picture() -> None:
    for count in (1, 4, 16):
        asked = albums(4, pictures=count)
        assert all(len(p.images) == count for p in asked)
        if count > 1:
            assert [p.text.split()[2] for p in asked] == ["first", "second", "third", "first"]


def test_demo_scenes_are_held_out() -> None:
    assert all(is_eval_seed(scene.seed) for scene in demo_scenes())


@pytest.mark.parametrize("make", [held_out, questions, albums])
@pytest.mark.parametrize(("count", "seed"), [(0, 0), (1, -1), (1, 10_000)])
def test_wrong_counts_and_seeds_are_refused(make: Callable, count: int, seed: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        make(count, seed)


def test_a_batch_is_padded_on_the_left_and_holds_all_pictures() -> None:
    processor = byte_processor()
    inputs = encode(processor, held_out(10)[8:])
    assert inputs["pixel_values"].shape[0] == 4
    short = int(inputs["attention_mask"].sum(1).argmin())
    assert inputs["attention_mask"][short, 0] == 0 and inputs["attention_mask"][:, -1].all()
    assert (inputs["input_ids"] == 3).sum().item() == 4 * 4


def test_a_prompt_without_pictures_and_without_template() -> None:
    processor = byte_processor()
    assert "pixel_values" not in encode(processor, [VlmPrompt("Hello", ())])
    processor.chat_template = None
    assert (encode(processor, [VlmPrompt("Hello", held_out(1)[0].images)])["input_ids"] == 3).sum().item() == 4


def test_a_placeholder_in_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="placeholder"):
        encode(byte_processor(), [VlmPrompt("what is <image>?", held_out(1)[0].images)])
