"""The text tower of the zoo's CLIP."""

from __future__ import annotations

from mmspec.zoo.architectures.clip import token_ids


def test_the_text_tower_reads_up_to_the_end_token() -> None:
    ids = token_ids(["a red star", "a red star " * 20])
    assert ids.shape == (2, 32)
    assert (ids == 1).any(-1).all() and (ids[0, 4:] == 0).all()
