"""Two zoo models with one vision tower: the second file leaves it out when it is bit for bit that of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mmspec.core.checkpoints import load_model, load_part
from mmspec.core.files import replacing
from mmspec.core.readers import read_tensors

FILE, TOWER = "model.safetensors", "vision_tower."


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
