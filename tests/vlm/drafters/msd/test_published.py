"""MSD files of both layouts are told apart by whatever says it, and a contradiction names the key that decides."""

from __future__ import annotations

import pytest

import mmspec
from mmspec.vlm.drafters.msd import Msd
from tests.vlm.drafters.published_files import PUBLISHED, Published, random_file
from tests.vlm.tiny import tiny

LLAVA, QWEN = PUBLISHED["MSD-LLaVA1.5-7B"], PUBLISHED["MSD-Qwen2VL-7B-Instruct"]


def load(published: Published, target: str | None = None, **config: object) -> Msd:
    """The small file, its config without `model_type` unless one is given."""
    known = published.small_config
    known.pop("model_type")
    state = random_file(published.shapes(known))
    model = None if target is None else tiny(target)
    return mmspec.vlm.drafter_from_state_dict("msd", state, {**known, **config}, model)


@pytest.mark.parametrize("target", (None, "llava"))
def test_a_llava_file_needs_no_model_type(target: str | None) -> None:
    config = load(LLAVA, target).config
    assert not config.input_norm and not config.qkv_bias


@pytest.mark.parametrize("target", (None, "qwen2_5_vl"))
def test_a_qwen_file_needs_no_model_type(target: str | None) -> None:
    config = load(QWEN, target).config
    assert config.input_norm and config.qkv_bias


def test_a_contradiction_names_the_key_that_decides() -> None:
    for published, told in ((LLAVA, "qwen2_vl"), (QWEN, "llava")):
        with pytest.raises(ValueError, match=rf"model_type decides about .*input_layernorm.* and is '{told}'"):
            load(published, model_type=told)
    with pytest.raises(ValueError, match=r"missing .*input_layernorm.*model_type decides about .* and is 'qwen2_5_vl'"):
        load(LLAVA, "qwen2_5_vl")
