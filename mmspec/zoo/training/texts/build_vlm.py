"""Build the zoo VLMs from nothing: a densely pretrained tower, then the captioner; resumable, CPU or GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from mmspec.core.files import write_json_atomic
from mmspec.core.readers import read_json
from mmspec.vlm.training.checkpoint import load_state

from ...architectures.llava import TextSize, new_model, new_processor
from ...architectures.vision_tower import PatchReader, new_tower
from ...files.cards import rounded, write_card
from ...files.llava import leave_out_tower, write_vlm
from ...files.registry import folder_of, load_small, load_vlm
from ..loop import Plan, start_over
from .captioner import FIRST_SEED, Mixture, start_projector, train_captioner
from .vision_tower import pretrain_tower


@dataclass(frozen=True, slots=True)
class VlmRecipe:
    """Everything that decides a zoo VLM; the defaults are the shipped `vlm`."""

    name: str = "vlm"
    size: TextSize = TextSize()
    tower_steps: int = 3160
    steps: int = 1240
    lr: float = 1.5e-3
    seed: int = 0


def small_recipe() -> VlmRecipe:
    """The assistant model `vlm/small`: same tower and tokenizer, two narrow text layers."""
    return VlmRecipe(name="vlm/small", size=TextSize(layers=2, width=128, inner=352), steps=700, lr=2e-3)


def build(
    out: Path,
    work: Path,
    recipe: VlmRecipe = VlmRecipe(),
    *,
    resume: bool = True,
    device: str = "cpu",
    measure: Callable[[LlavaForConditionalGeneration, LlavaProcessor], dict[str, float]] | None = None,
    preview: Path | None = None,
    preview_from: float = 0.4,
) -> dict[str, Any]:
    """Train `recipe` in `work` (checkpoints, logs), write fp16 weights, processor and card to `out`; returns the card.

    The tower in `work/tower` is shared by all recipes. `measure` is given the model read back from `out` and adds its
    figures to the card. `preview` names a folder that receives a loadable copy at every checkpoint after `preview_from`
    of the captioner's steps.
    """
    folder = work / recipe.name.replace("/", "_")
    if not resume:
        start_over(folder)
    reader, tower_accuracy = _tower(recipe, work / "tower", resume, device)
    processor = new_processor()
    torch.manual_seed(recipe.seed)
    model = new_model(processor.tokenizer, recipe.size)
    model.model.vision_tower.load_state_dict(reader.tower.state_dict())
    start_projector(model, reader)

    def on_save(step: int) -> None:
        if preview is not None and step >= preview_from * recipe.steps:
            write_vlm(model, processor, preview)

    plan = Plan(steps=recipe.steps, lr=recipe.lr, warmup=100, weight_decay=0.05)
    figures = train_captioner(model, processor.tokenizer, folder, plan, Mixture(), resume, device, on_save)
    write_vlm(model, processor, out)
    lean = recipe.name != "vlm" and leave_out_tower(out, folder_of("vlm"))
    facts = {
        "tower_seeds": [0, recipe.tower_steps * 32],
        "caption_seeds": [FIRST_SEED, FIRST_SEED + recipe.steps * Mixture().batch],
        "model_seed": recipe.seed,
        "tower_steps": recipe.tower_steps,
        "steps": recipe.steps,
        "tower_patch_accuracy": tower_accuracy,
        "training": rounded(figures),
    }
    data = "procedural world of mmspec.zoo.world, rendered and captioned from seeds"
    card = write_card(out, recipe.name, model, data, **facts)
    if measure is None:
        return card
    evaluation = measure(*(load_small if lean else load_vlm)(out))
    return write_card(out, recipe.name, model, data, **facts, evaluation=evaluation)


def _tower(recipe: VlmRecipe, folder: Path, resume: bool, device: str) -> tuple[PatchReader, dict[str, float]]:
    finished = folder / "accuracy.json"
    if resume and finished.exists():
        reader = PatchReader(new_tower())
        load_state(folder / "state.safetensors", reader)
        return reader, read_json(finished)
    finished.unlink(missing_ok=True)  # of an older tower: this one may be stopped on the way
    reader, accuracy = pretrain_tower(folder, recipe.tower_steps, resume=resume, device=device)
    write_json_atomic(finished, accuracy)
    return reader, accuracy
