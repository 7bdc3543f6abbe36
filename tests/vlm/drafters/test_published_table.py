"""The table of published drafters, and how a target is found in it."""

from __future__ import annotations

import re

import pytest

from mmspec.vlm.drafters.drafter_names import published_kinds
from mmspec.vlm.drafters.published import PUBLISHED, hub_id, published_for, size_misfit

_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CACHED = "/home/a/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123"


def test_every_row_is_well_formed() -> None:
    assert len({one.repo for one in PUBLISHED}) == len(PUBLISHED) >= 40
    for one in PUBLISHED:
        assert _ID.fullmatch(one.repo) and _ID.fullmatch(one.target) and one.repo != one.target, one
        assert one.kind in published_kinds(), one
        assert bool(one.hidden_size) == bool(one.vocab_size) and one.hidden_size % 128 == 0, one
        assert re.fullmatch(r"(\d+(\.\d+)?[BM])?", one.size) and one.licence == one.licence.strip().lower(), one


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", _CACHED, "/data/Qwen3-8B", "Qwen3-8B"])
def test_a_target_is_found_by_id_cache_and_folder(name: str) -> None:
    found = published_for(name)
    assert [entry.repo for entry in found] == [
        "z-lab/Qwen3-8B-DFlash-b16",
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "AngelSlim/Qwen3-8B_eagle3",
        "deepseek-ai/eagle3_qwen3_8b_ttt7",
        "deepseek-ai/dspark_qwen3_8b_block7",
    ]


@pytest.mark.parametrize("name", ["", "/", "someone/Qwen3-8B", "Qwen/Qwen3-8B-Base", "models--broken", "8B"])
def test_another_model_has_none(name: str) -> None:
    assert published_for(name) == ()


def test_the_id_of_a_folder_in_the_cache() -> None:
    assert hub_id(_CACHED) == "Qwen/Qwen3-8B" and hub_id("/a/b") == "b" and hub_id("a/b") == "a/b" and hub_id("") == ""


def test_sizes_are_compared_in_every_published_form() -> None:
    assert size_misfit({"hidden_size": 4, "vocab_size": 9}, 4, 9) == "" == size_misfit({}, 4, 9)
    assert size_misfit({"hidden_size": 8, "vocab_size": 9}, 4, 9) == "hidden_size 8 instead of 4"
    assert (
        size_misfit({"transformer_layer_config": {"hidden_size": 4, "vocab_size": 11}}, 4, 9)
        == "vocab_size 11 instead of 9"
    )
    assert size_misfit({"hidden_size": 8, "target_hidden_size": 4}, 4, 9) == ""
    assert size_misfit({"hidden_size": 2, "backbone_hidden_size": 4}, 4, 9) == ""


def test_the_front_of_the_targets_vocabulary_is_no_misfit() -> None:
    row = next(row for row in PUBLISHED if row.repo == "lucylyn/MSD-LLaVA1.5-7B")
    assert row.misfit(4096, 32064) == "" == row.misfit(4096, 32000)
    assert row.misfit(4096, 128256) == "vocab_size 32000 instead of 128256"
    assert size_misfit({"vocab_size": 32064}, 4096, 32000) == "vocab_size 32064 instead of 32000"


def test_a_row_says_where_its_config_was_read_or_that_its_layout_is_assumed() -> None:
    for row in PUBLISHED:
        assert re.fullmatch(r"([\w.-]+/[\w.-]+:([\w./-]+\.(json|py|sh|md|rs)|pull/\d+))?", row.read), row.read
        assert str(row) == (row.repo if row.read else f"{row.repo} (layout assumed)")
    assert sum(bool(row.read) for row in PUBLISHED) > len(PUBLISHED) // 2
