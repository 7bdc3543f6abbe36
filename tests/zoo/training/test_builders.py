"""Builds of several stages."""

from __future__ import annotations

import pytest

from mmspec.zoo.training.image import build_llamagen
from mmspec.zoo.training.vlm import build_vlm


@pytest.mark.parametrize(
    ("builder", "first", "later"),
    [(build_vlm, "load_or_train", ["vlm"]), (build_llamagen, "build_vq", ["caption_encoder", "t2i"])],
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_build_that_starts_over_forgets_its_later_stages_first(builder, first, later, resume, tmp_path, monkeypatch):
    def stopped(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(builder, first, stopped)
    states = [tmp_path / name / "state.safetensors" for name in later]
    for state in states:
        state.parent.mkdir()
        state.touch()
    with pytest.raises(KeyboardInterrupt):
        if builder is build_vlm:
            builder.build(tmp_path / "out", tmp_path, resume=resume)
        else:
            builder.build_t2i(tmp_path / "out", tmp_path, resume=resume)
    assert [state.exists() for state in states] == [resume] * len(states)
