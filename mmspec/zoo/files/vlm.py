"""The zoo's VLMs in their folders. The small LLaVA leaves its tower out where it equals that of the first bit for bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.files import replacing, writing
from mmspec.io.readers import read_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel, ProcessorMixin


FILE, TOWER = "model.safetensors", "vision_tower."


def write_vlm(model: PreTrainedModel, processor: ProcessorMixin, out: Path) -> None:
    """Write fp16 safetensors and the processor's files to `out`, complete or not at all."""
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.generation_config = model.generation_config
    with writing(partial):
        half.half().save_pretrained(partial)
        processor.save_pretrained(partial)
    if out.exists():
        for path in partial.iterdir():
            os.replace(path, out / path.name)
        partial.rmdir()
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, out)


def leave_out_tower(folder: Path, other: Path) -> bool:
    """Takes the tower out of the weights in `folder` where those in `other` hold the same one. Returns whether it did."""
    if not (other / FILE).exists():
        return False
    mine, theirs = read_tensors(folder / FILE), read_tensors(other / FILE)
    tower = [name for name in mine if name.startswith(TOWER)]
    if not tower or not all(name in theirs and torch.equal(mine[name], theirs[name]) for name in tower):
        return False
    with replacing(folder / FILE) as partial:
        save_file(
            {name: value for name, value in mine.items() if name not in tower}, partial, metadata={"format": "pt"}
        )
    return True


def load_with_tower(folder: Path, other: Path) -> Any:
    """The LLaVA model stored in `folder` (fp32, eval mode), with the tower in `other` where its own was left out."""
    from transformers import GenerationConfig, LlavaConfig, LlavaForConditionalGeneration

    state = read_tensors(folder / FILE)
    if not any(name.startswith(TOWER) for name in state):
        state |= {name: value for name, value in read_tensors(other / FILE).items() if name.startswith(TOWER)}
    config = load_part(LlavaConfig, folder)
    model = load_model(LlavaForConditionalGeneration, folder, dtype=torch.float32, config=config, state_dict=state)
    model.generation_config = load_part(GenerationConfig, folder)
    return model


def read_hybrid(folder: Path) -> tuple[Any, Any]:
    """The Qwen3.5 model (fp32, eval mode) and processor stored in `folder`."""
    from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

    from mmspec.io.checkpoints import load_model, load_part

    model = load_model(Qwen3_5ForConditionalGeneration, folder, dtype=torch.float32)
    processor = load_part(Qwen3VLProcessor, folder)
    # the processor's own choice goes by the model's type and splits words as Qwen's files do, whatever tokenizer.json says
    processor.tokenizer = load_part(PreTrainedTokenizerFast, folder)
    return model, processor
