"""Sizes."""

from __future__ import annotations

import pytest

from mmspec.imagegen.llamagen.llamagen_config import GPTConfig

HIDDEN = {"B": 2048, "L": 2816, "XL": 3584, "XXL": 4096, "XXXL": 6912, "1B": 5632, "3B": 8704, "7B": 11008}


@pytest.mark.parametrize(("name", "hidden"), HIDDEN.items())
def test_published_sizes(name: str, hidden: int) -> None:
    config = GPTConfig.preset(name)
    assert config.hidden == hidden and config == GPTConfig.preset(f"GPT-{name}")
    assert config.head_dim == {"3B": 100, "7B": 128}.get(name, 64)
    assert GPTConfig.of(config.to_dict()) == config


def test_captions_have_a_prefix_of_120() -> None:
    assert GPTConfig.preset("XL", model_type="t2i", block_size=1024).cls_token_num == 120


def test_the_multiplier_comes_before_the_rounding() -> None:
    assert GPTConfig(dim=96, n_head=4, ffn_dim_multiplier=1.3, multiple_of=32).hidden == 352
    assert GPTConfig(dim=96, n_head=4, ffn=300).hidden == 300


def test_a_whole_number_may_stand_for_a_float() -> None:
    given = {"n_kv_head": None, "rope_base": 10000, "ffn_dim_multiplier": 1, "model_type": "t2i", "cls_token_num": 8}
    assert GPTConfig.of(given).cls_token_num == 8


def test_training_fields_are_left_out() -> None:
    assert GPTConfig.of({"dim": 64, "n_head": 4, "resid_dropout_p": 0.1}) == GPTConfig(dim=64, n_head=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 66, "n_head": 4}, "dim: expected"),
        ({"dim": 24, "n_head": 4}, "multiple of 4"),
        ({"n_kv_head": 5}, "n_kv_head: expected a divisor"),
        ({"model_type": "t2v"}, "model_type: expected"),
        ({"cls_token_num": 120}, "cls_token_num: expected 1"),
        ({"block_size": 255}, "block_size: expected a square"),
        ({"n_layer": 0}, "n_layer: expected"),
        ({"frames": 0}, "frames: expected at least 1"),
        ({"frames": 2}, "time_pairs: expected 1 or more for 2 frames"),
        ({"frames": 2, "time_pairs": 31}, "time_pairs: expected from 0 up and an even number of the 64 pairs"),
        ({"time_pairs": 64}, "time_pairs: expected from 0 up"),
        ({"time_pairs": -2}, "time_pairs: expected from 0 up"),
        ({"frames": 1 << 20, "time_pairs": 2}, "block_size: expected at most 1048576 tokens in all frames"),
        ({"layers": 2}, r"\['layers'\]"),
        ({"n_head": "x"}, "n_head: expected int, got 'x'"),
        ({"n_layer": True}, "n_layer: expected int, got True"),
        ({"n_layer": 2.0}, "n_layer: expected int, got 2.0"),
        ({"n_kv_head": [2]}, r"n_kv_head: expected int or None, got \[2\]"),
        ({"norm_eps": None}, "norm_eps: expected float, got None"),
        ({"model_type": {}}, "model_type: expected .*, got {}"),
    ],
)
def test_wrong_fields_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig.of(fields)
