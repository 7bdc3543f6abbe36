"""Files of the zoo's VLMs. The small LLaVA leaves its tower out where it equals that of the first LLaVA bit for bit."""

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
    from transformers import (
        CLIPVisionModel,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedModel,
        ProcessorMixin,
    )


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
    """Remove the tower from the weights in `folder` if the weights in `other` hold the same tower; return whether so."""
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


def read_vlm(folder: Path, other: Path | None = None) -> tuple[Any, Any]:
    """Load a LLaVA model (fp32, eval mode) and its processor, with the tower in `other` where `folder` has none."""
    from transformers import GenerationConfig, LlavaForConditionalGeneration, LlavaProcessor

    stored = {} if other is None else _with_tower(folder, other)
    model = load_model(LlavaForConditionalGeneration, folder, dtype=torch.float32, **stored)
    if stored:
        model.generation_config = load_part(GenerationConfig, folder)
    return model, load_part(LlavaProcessor, folder)


def _with_tower(folder: Path, other: Path) -> dict[str, Any]:
    from transformers import LlavaConfig

    state = read_tensors(folder / FILE)
    if not any(name.startswith(TOWER) for name in state):
        state |= {name: value for name, value in read_tensors(other / FILE).items() if name.startswith(TOWER)}
    return {"config": load_part(LlavaConfig, folder), "state_dict": state}


def read_tower(folder: Path) -> CLIPVisionModel:
    """Load the vision tower of the LLaVA in `folder` (fp32, eval mode)."""
    return read_vlm(folder)[0].model.vision_tower


def read_captioner(
    folder: Path, tower: Path, language: tuple[Any, Any]
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Load the captioner in evaluation mode, in the precision of its text model, which becomes a part of it."""
    from mmspec.zoo.architectures.smol import ProjectorSize, WindowProjector, compose, new_processor, picture_id
    from mmspec.zoo.files.sized import load_sized

    model, tokenizer = language
    picture = picture_id(tokenizer)
    projector = load_sized(ProjectorSize, WindowProjector, folder)
    return compose(read_tower(tower), projector, model, picture), new_processor(tokenizer)


def read_hybrid(folder: Path) -> tuple[Any, Any]:
    """Load the Qwen3.5 model (fp32, eval mode) in `folder` and its processor."""
    from transformers import PreTrainedTokenizerFast, Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

    model = load_model(Qwen3_5ForConditionalGeneration, folder, dtype=torch.float32)
    processor = load_part(Qwen3VLProcessor, folder)
    # the processor chooses a tokenizer by the model's type, which splits words as Qwen's does and ignores tokenizer.json
    processor.tokenizer = load_part(PreTrainedTokenizerFast, folder)
    return model, processor


def read_mtp(folder: Path, target: tuple[Any, Any]) -> Any:
    """Load the MTP layer in `folder` (fp32, eval mode) for a target of its class."""
    from mmspec.vlm.drafters.checkpoints import load_drafter

    return load_drafter(folder, target=target[0])


def read_text_model(folder: Path, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Load the text model in `folder` (eval mode; float32 unless `dtype` is set) and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # instead of `.to(dtype)`, which rounds the rotary frequencies too
    model = load_model(AutoModelForCausalLM, folder, dtype=torch.float32 if dtype is None else dtype)
    return model, load_part(AutoTokenizer, folder)
