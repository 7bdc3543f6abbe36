"""The requests that drafters are trained and measured on."""

from __future__ import annotations

import pytest

from mmspec.zoo.training.vlm.drafter_requests import HeldOutRequests, SceneRequests, TextRequests
from mmspec.zoo.world.scene import EVAL_START


def test_requests_are_pure_functions_of_their_index() -> None:
    for stream in (SceneRequests(300), TextRequests(8), HeldOutRequests()):
        one, two = stream[3], stream[3]
        assert (one.key, one.text, one.answer) == (two.key, two.text, two.answer)
        assert [image.tobytes() for image in one.images] == [image.tobytes() for image in two.images]
        with pytest.raises(IndexError):
            stream[len(stream)]
    counts = {len(SceneRequests(300)[index].images) for index in (0, 84, 85, 276)}
    assert counts == {1, 2, 3, 6}


def test_held_out_pictures_come_from_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmspec.zoo.training.vlm.drafter_requests as lessons

    seen: list[int] = []
    sample = lessons.sample_scene
    monkeypatch.setattr(lessons, "sample_scene", lambda seed: seen.append(seed) or sample(seed))
    HeldOutRequests()[0]
    assert min(seen) >= EVAL_START
    seen.clear()
    SceneRequests(300)[0], TextRequests(8)[0], SceneRequests(300)[276]
    assert max(seen) < EVAL_START
