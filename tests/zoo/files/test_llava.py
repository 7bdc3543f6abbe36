"""The zoo's LLaVA models in their folders."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.zoo.architectures.llava import TextSize, new_model, new_processor
from mmspec.zoo.files.vlm import leave_out_tower, write_vlm


def test_a_tower_that_another_file_holds_is_left_out_and_found_again(tmp_path):
    tensors = {"vision_tower.a": torch.randn(3), "language_model.b": torch.randn(2)}
    for name, tower in (("first", 0.0), ("same", 0.0), ("other", 1.0)):
        (tmp_path / name).mkdir()
        moved = {**tensors, "vision_tower.a": tensors["vision_tower.a"] + tower}
        save_file(moved, tmp_path / name / "model.safetensors")
    assert leave_out_tower(tmp_path / "same", tmp_path / "first")
    assert not leave_out_tower(tmp_path / "other", tmp_path / "first")
    assert set(load_file(tmp_path / "same" / "model.safetensors")) == {"language_model.b"}
    assert len(load_file(tmp_path / "other" / "model.safetensors")) == 2


@pytest.mark.whole
def test_a_model_is_written_whole_over_an_older_model(tmp_path):
    from transformers import LlavaForConditionalGeneration, LlavaProcessor

    processor, out = new_processor(), tmp_path / "vlm"
    for seed in range(2):
        torch.manual_seed(seed)
        model = new_model(processor.tokenizer, TextSize(layers=1, width=64, inner=96))
        write_vlm(model, processor, out)
    assert [path.name for path in tmp_path.iterdir()] == ["vlm"]
    again = LlavaForConditionalGeneration.from_pretrained(out)
    assert again.dtype == torch.float16 and model.dtype == torch.float32
    assert all(torch.equal(value.half(), again.state_dict()[name]) for name, value in model.state_dict().items())
    assert len(LlavaProcessor.from_pretrained(out).tokenizer) == len(processor.tokenizer)
