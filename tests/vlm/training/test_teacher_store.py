"""Teacher batches on disk: what is read back, what a store cut short does, and that the target sees its pictures."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.teacher import Teacher, VlmTeacherBatch
from mmspec.vlm.training.teacher_store import TeacherStore, check_image_dependence
from tests.evaluate.tiny_zoo import tiny_zoo


def teacher_batch(number: int, levels: bool = False, large: float = 1.0) -> VlmTeacherBatch:
    rng = torch.Generator().manual_seed(number)
    last = torch.randn(2, 6, 4, generator=rng) * large
    return VlmTeacherBatch(
        ids=torch.randint(50, (2, 6), generator=rng),
        answer=torch.rand(2, 6, generator=rng) < 0.5,
        embeds=torch.randn(2, 6, 4, generator=rng),
        last=last,
        hidden=torch.randn(2, 6, 12, generator=rng) if levels else last,
        padding=torch.rand(2, 6, generator=rng) < 0.2 if levels else None,
    )


@pytest.mark.parametrize(("levels", "large"), [(False, 1.0), (True, 1.0), (False, 1e6)])
def test_stored_teacher_batches_are_read_back_unchanged(levels: bool, large: float, tmp_path: Path) -> None:
    stored, given = TeacherStore(tmp_path / "states"), teacher_batch(3, levels, large)
    stored.write(3, given)
    found = stored(3)
    assert torch.equal(found.ids, given.ids) and torch.equal(found.answer, given.answer)
    for name in ("embeds", "last", "hidden"):
        was, now = getattr(given, name), getattr(found, name)
        assert now.dtype == torch.float32 and torch.allclose(now, was, rtol=1e-2, atol=1e-3)  # 1e6 is beyond float16
    assert (found.hidden is found.last) == (not levels)
    assert found.padding is None if given.padding is None else torch.equal(found.padding, given.padding)
    assert stored.numbers == (3,) and stored.megabytes == pytest.approx(stored.path(3).stat().st_size / 1e6)


def test_a_store_cut_short_is_completed(tmp_path: Path) -> None:
    stored, made, told = TeacherStore(tmp_path), [], []

    def of(number: int) -> VlmTeacherBatch:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return teacher_batch(number)

    with pytest.raises(KeyboardInterrupt):
        stored.store((5, 2, 7, 0), of)
    assert stored.numbers == (2, 5) and len(list(tmp_path.iterdir())) == 2
    assert stored.store((5, 2, 7, 0), teacher_batch, told.append) == 2
    assert told == [5, 2, 7, 0] and stored.numbers == (0, 2, 5, 7)
    assert torch.equal(stored(7).ids, teacher_batch(7).ids)


def test_a_damaged_or_missing_teacher_batch_is_named(tmp_path: Path) -> None:
    stored = TeacherStore(tmp_path)
    stored.write(1, teacher_batch(1))
    stored.path(1).write_bytes(stored.path(1).read_bytes()[:100])
    for number in (1, 2):
        with pytest.raises(ValueError, match=f"000000{number}.safetensors: expected "):
            stored(number)


def test_the_states_learned_from_depend_on_the_picture() -> None:
    model, processor = tiny_zoo()["vlm"]
    shown = Example("a", "what is it?", (Image.frombytes("RGB", (12, 12), random.Random(0).randbytes(432)),), "a thing")
    teacher = Teacher(model, processor, None, precision="no")
    check_image_dependence(teacher, [Example("b", "say something", (), "no"), shown])
    check_image_dependence(teacher, [Example("b", "say something", (), "no")])

    def blind(examples: list[Example]) -> VlmTeacherBatch:
        grey = tuple(Image.new("RGB", image.size, "grey") for image in examples[0].images)
        return teacher([Example("a", examples[0].text, grey, examples[0].answer)])

    with pytest.raises(ValueError, match="target: expected states that change with the picture of 'a'"):
        check_image_dependence(blind, [shown])
