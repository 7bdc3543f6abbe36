"""Curricula and batches: exact shares, pure functions of the step."""

from __future__ import annotations

import pytest

from mmspec.vlm.training.data import Batches, Curriculum
from mmspec.vlm.training.examples import Example


def shown(curriculum: Curriculum, steps: int) -> list[bool]:
    return [curriculum.stream(step, steps) == "pictures" for step in range(steps)]


def test_the_default_is_the_published_curriculum() -> None:
    """Epochs 1 to 20 text, (e - 20) / 20 of pictures in epoch e from 21, all in epoch 40."""
    pictures = shown(Curriculum(), 4000)
    for epoch in range(1, 41):
        share = max(0, epoch - 20) / 20
        assert Curriculum().share((epoch - 1) * 100 + 50, 4000) == pytest.approx(share)
        assert sum(pictures[(epoch - 1) * 100 : epoch * 100]) == round(100 * share)


@pytest.mark.parametrize("steps", [7, 40, 333, 800])
@pytest.mark.parametrize("curriculum", [Curriculum(), Curriculum(0.1, 0.2), Curriculum(0.3, 0.7, epochs=9)])
def test_dealt_batches_keep_up_with_the_shares(curriculum: Curriculum, steps: int) -> None:
    owed = dealt = 0.0
    for step, picture in enumerate(shown(curriculum, steps)):
        owed, dealt = owed + curriculum.share(step, steps), dealt + picture
        assert abs(owed - dealt) < 1 + 1e-6
    assert curriculum.stream(steps - 1, steps) == "pictures"


def test_two_stages_have_no_ramp() -> None:
    pictures = shown(Curriculum(0.25, 0.25), 80)
    assert pictures == [False] * 20 + [True] * 60


def test_shares_that_make_no_sense_are_refused() -> None:
    for values in ((0.5, 0.4), (-0.1, 1.0), (0.5, 1.1), (0.5, 1.0, 0)):
        with pytest.raises(ValueError, match="curriculum: expected 0 <= texts_until"):
            Curriculum(*values)


def examples(name: str, count: int) -> list[Example]:
    return [Example(f"{name}{i}", "") for i in range(count)]


def keys(batches: Batches, steps: int) -> list[str]:
    return [" ".join(example.key for example in batches[batches.number(step)]) for step in range(steps)]


def test_batches_go_round() -> None:
    batches = Batches(examples("p", 5), batch=2, steps=5)
    assert keys(batches, 6) == ["p0 p1", "p2 p3", "p4 p0", "p0 p1", "p2 p3", "p0 p1"]
    assert batches.count == 3 and batches.needed == (0, 1, 2)


def test_streams_are_drawn_as_the_curriculum_says() -> None:
    batches = Batches(examples("p", 4), 2, 8, examples("t", 9), Curriculum(0.5, 0.5))
    assert keys(batches, 8) == ["t0 t1", "t2 t3", "t4 t5", "t6 t7", "p0 p1", "p2 p3", "p0 p1", "p2 p3"]
    assert [places for _, places in batches.used] == [(0, 1, 2, 3), tuple(range(8))]
    assert len(batches.needed) == 6


def test_streams_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="expected examples, and batch and steps of at least 1"):
        Batches([], 2, 3)
    with pytest.raises(ValueError, match="texts: expected texts together with a curriculum"):
        Batches(examples("p", 4), 2, 3, examples("t", 1))
