"""On-policy answers: the drafter's tokens have their share, follow a true prefix, and are judged by the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from mmspec.vlm.training.examples import Example, encode
from mmspec.vlm.training.job import Job, run_job
from mmspec.vlm.training.on_policy import OnPolicyTeacher, Teaching
from mmspec.vlm.training.teacher import Teacher, VlmTeacherBatch
from tests.evaluate.tiny_zoo import tiny_zoo

ANSWERS = {f"k{n}": [20 + (7 * n + i) % 200 for i in range(10 + n % 4)] for n in range(8)}
PICTURES = [Image.new("RGB", (12, 12), (20 * n, 90, 200)) for n in range(8)]
EXAMPLES = [Example(key, f"what {key}?", (PICTURES[n],) if n % 2 else ()) for n, key in enumerate(ANSWERS)]


def teacher_of(share: str | float, length: int = 4) -> OnPolicyTeacher:
    model, processor = tiny_zoo()["vlm"]
    drafter = tiny_zoo()["vlm/eagle"]
    return OnPolicyTeacher(Teacher(model, processor, ANSWERS, precision="no"), drafter, Teaching(share, length), seed=3)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_the_share_of_the_drafters_tokens_is_the_setting(share: float) -> None:
    tokens, teaching, shares = [12, 30, 25, 18, 40, 22], Teaching(share, 8), []
    for seed in range(3000):
        rows = teaching.rows(tokens, 8, seed)
        own = 8 * len(rows)
        shares.append(own / (own + sum(count for row, count in enumerate(tokens) if row not in rows)))
    assert sum(shares) / len(shares) == pytest.approx(share, abs=0.012)
    assert {row for seed in range(40) for row in teaching.rows(tokens, 8, seed)} == (set(range(6)) if share else set())


def trained(batch: VlmTeacherBatch) -> list[int]:
    return batch.answer.sum(1).tolist()


def test_the_two_ends_are_the_answers_and_continuations() -> None:
    target, drafter = teacher_of("target")(EXAMPLES, 0), teacher_of("drafter")(EXAMPLES, 0)
    assert trained(target) == [len(ids) for ids in ANSWERS.values()]
    assert max(trained(drafter)) == 4 and sum(trained(drafter)) >= 24
    assert torch.equal(target.ids, teacher_of("target").teacher(EXAMPLES).ids)


def test_a_continuation_is_drawn_from_the_drafter_behind_a_true_prefix() -> None:
    """The same request by hand gives the same chain, and the target has read the text that it judges."""
    teacher = teacher_of("drafter")
    batch, again, other = (teacher(EXAMPLES, step) for step in (5, 5, 6))
    assert torch.equal(batch.ids, again.ids) and torch.equal(batch.last, again.last)
    assert not torch.equal(batch.ids[batch.answer], other.ids[other.answer])
    model, processor = tiny_zoo()["vlm"]
    start = encode(processor, EXAMPLES)["input_ids"].shape[1]
    for row, example in enumerate(EXAMPLES):
        taught = batch.answer[row].nonzero()[:, 0].tolist()
        if not taught:
            continue
        assert taught == list(range(taught[0], taught[-1] + 1))
        place = taught[0] - 1 - start
        prefix = batch.ids[row, start : start + place].tolist()
        assert prefix == ANSWERS[example.key][:place]
        alone = teacher.teacher.over([example], [batch.ids[row, start : taught[-1] + 1].tolist()])
        torch.testing.assert_close(alone.last[0, -1], batch.last[row, taught[-1]], atol=1e-4, rtol=1e-4)


def test_another_drafter_writes_other_text() -> None:
    own = teacher_of("drafter")
    before = own(EXAMPLES, 1)
    weight = own.drafter.fc.weight
    saved = weight.clone()
    try:
        with torch.no_grad():
            weight.normal_()
        after = own(EXAMPLES, 1)
    finally:
        with torch.no_grad():
            weight.copy_(saved)
    assert not torch.equal(before.ids[before.answer], after.ids[after.answer])


def test_a_run_trains_on_a_mixture_and_records_it(tmp_path: Path) -> None:
    from mmspec.vlm.training.data import TrainingData

    model, processor = tiny_zoo()["vlm"]
    job = Job("msd", steps=3, batch=4, precision="no", source="0.5", drafted=4, new_tokens=12)
    card = run_job(job, model, processor, TrainingData(EXAMPLES), tmp_path / "out", target="tiny")
    assert card["source"] == "0.5" and card["training"]["loss"] > 0


def test_wrong_sources_are_refused() -> None:
    for source in ("both", 1.5, -0.1):
        with pytest.raises(ValueError, match="source"):
            Teaching(source)
    with pytest.raises(ValueError, match="length"):
        Teaching("drafter", 0)
    with pytest.raises(ValueError, match="offline"):
        Job("msd", steps=1, source="drafter", teacher="offline")
    model, processor = tiny_zoo()["vlm"]
    from tests.vlm.drafters.trained import make

    with pytest.raises(ValueError, match="blocks"):
        OnPolicyTeacher(Teacher(model, processor, ANSWERS), make("dflash"), Teaching("drafter"))
