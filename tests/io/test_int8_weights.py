"""Weights in eight bits: how near they come back, what is refused, and a drafter that is stored so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
import mmspec.vlm
from mmspec.io.int8_weights import quantise_rows, restore_rows
from mmspec.vlm.drafters.eagle3 import Eagle3
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny


def test_rows_come_back_within_half_a_step_of_their_scale() -> None:
    torch.manual_seed(0)
    wide = torch.randn(5, 3, 7) * torch.logspace(-4, 3, 5)[:, None, None]
    wide[2] = 0
    state = {"a": wide, "b": torch.randn(4), "ids": torch.arange(3), "kept": torch.tensor([True])}
    stored = quantise_rows(state)
    assert stored["a"].dtype == torch.int8 and stored["b"].dtype == torch.float16 and stored["a.scale"].shape == (5,)
    again = restore_rows(stored)
    assert list(again) == list(state) and torch.equal(again["ids"], state["ids"])
    error = (again["a"] - wide).abs().flatten(1).amax(1)
    assert bool((error <= 0.5001 * wide.abs().flatten(1).amax(1) / 127).all()) and not again["a"][2].any()


def test_a_name_that_a_scale_would_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected no tensor called 'a\.scale'"):
        quantise_rows({"a": torch.ones(2, 2), "a.scale": torch.ones(2)})


def test_a_weight_called_scale_is_left_alone() -> None:
    state = {"norm.scale": torch.ones(2), "norm": torch.arange(2, dtype=torch.int8)}
    assert restore_rows({"norm.scale": state["norm.scale"]}) == {"norm.scale": state["norm.scale"]}
    with pytest.raises(ValueError, match=r"norm\.scale: expected a scale"):
        restore_rows(state)


def test_a_drafter_in_eight_bits_drafts_for_the_same_words(tmp_path: Path) -> None:
    drafter = make("eagle3")
    for name, dtype in (("whole", None), ("eight", torch.int8)):
        drafter.save_pretrained(tmp_path / name, dtype=dtype)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("eight", "whole")]
    assert sizes[0] < 0.5 * sizes[1]
    model, inputs = tiny("llava"), prompt("llava")
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    again = mmspec.vlm.load_drafter(tmp_path / "eight", target=model)
    assert torch.equal(mmspec.generate(model, drafter=again, max_new_tokens=12, do_sample=False, **inputs), expected)
    torch.testing.assert_close(
        again.fc.weight, drafter.fc.weight, atol=0.02 * float(drafter.fc.weight.abs().max()), rtol=0
    )


@pytest.mark.parametrize("damage", ("short", "nan", "gone"))
def test_a_damaged_scale_is_named(damage: str, tmp_path: Path) -> None:
    make("eagle3").save_pretrained(tmp_path, dtype=torch.int8)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    scale = stored.pop("fc.weight.scale")
    if damage != "gone":
        stored["fc.weight.scale"] = scale[1:].clone() if damage == "short" else scale * torch.nan
    save_file(stored, file)
    with pytest.raises(ValueError, match=r"fc\.weight"):
        Eagle3.from_pretrained(tmp_path)
