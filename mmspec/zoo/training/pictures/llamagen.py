"""Training of the zoo's LlamaGen models on pictures that are rendered and tokenised as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel

from ...architectures.auxiliary_heads import WithAuxiliaryHeads
from ...architectures.pixels import to_pixels
from ...world.pictures import CLASSES, HELD_OUT, Picture, class_picture, low_res, sample_picture
from ...world.prompts import prompt_of
from ...world.scene import EVAL_START
from ..ahead import ahead
from ..loop import Plan, train
from ..precision import quick
from .picture_batches import picture_arrays
from .picture_facts import object_cells, reading_loss

FIRST_SEED = 1 << 29
CLASS_SEED = FIRST_SEED + (1 << 28)
DROP = 0.1  # rows whose condition is replaced by the null one, for guidance
Encode = Callable[[list[str]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class GptRecipe:
    """Everything that decides a zoo LlamaGen. low: it draws 32x32 pictures, 8x8 codes.

    reading, object_weight: weights of the auxiliary heads' loss and of the codes of objects. Both fade, to 0 and 1, over
    `guided_share` of the steps, so that what is learnt in the end is the law of the codes.
    choices: pictures drawn for each one trained on, see `step_pictures`: only pictures of two objects teach which color
    belongs to which shape.
    """

    name: str
    config: GPTConfig
    steps: int
    lr: float = 2e-3
    batch: int = 16
    low: bool = False
    reading: float = 0.3
    object_weight: float = 4.0
    guided_share: float = 0.7
    choices: int = 1
    seed: int = 0


def pictures_of(recipe: GptRecipe, first: int, count: int) -> list[Picture]:
    """Pictures of `count` seeds: of a class each where the model is class-conditional."""
    if recipe.config.model_type == "t2i":
        return [sample_picture(first + i) for i in range(count)]
    return [class_picture((first + i) % CLASSES, first + i) for i in range(count)]


def step_pictures(recipe: GptRecipe, step: int) -> list[Picture]:
    """The pictures of a training step, of `recipe.choices` each the one with most objects. A prompt says how many objects
    there are, so a picture's law given its prompt stays."""
    first = FIRST_SEED if recipe.config.model_type == "t2i" else CLASS_SEED
    size = recipe.batch * recipe.choices
    drawn = pictures_of(recipe, first + step * size, size)
    groups = [drawn[i : i + recipe.choices] for i in range(0, size, recipe.choices)]
    return [max(group, key=lambda one: len(one.items)) for group in groups]


def rendered(pictures: list[Picture], low: bool = False) -> Tensor:
    """Pixels float32 [B, 3, H, W] of pictures, or of half their side."""
    arrays = picture_arrays(pictures)
    return to_pixels(low_res(arrays) if low else arrays)


@torch.no_grad()
def codes_of(vq: VQModel, pixels: Tensor) -> Tensor:
    """The tokenizer's codes, int64 [B, 256], or [B, 64] of pictures of half the side."""
    device = vq.quantize.embedding.weight.device
    with quick(device):
        return vq.encode(pixels.to(device))[1]


def condition_of(
    recipe: GptRecipe, pictures: list[Picture], seed: int, encode: Encode | None
) -> tuple[Tensor, Tensor | None]:
    """(labels int64 [B], None) or (features float [B, 32, 128], mask bool [B, 32])."""
    if recipe.config.model_type == "c2i":
        first = [p.items[0].label for p in pictures]
        return torch.tensor(first), None
    return encode([prompt_of(picture, seed) for picture in pictures])


def train_llamagen(
    recipe: GptRecipe,
    vq: VQModel,
    encode: Encode | None,
    folder: Path,
    resume: bool = True,
    device: str = "cpu",
    projection: nn.Module | None = None,
    workers: int = 0,
) -> tuple[Transformer, dict[str, float]]:
    """Trains on pictures rendered and tokenised as it goes; returns the model and its last mean loss and top-1 figures.

    projection: what the transformer's own caption projection starts as.   workers: as in `ahead`.   The last loss is of codes
    alone, all of one weight.
    """
    torch.manual_seed(recipe.seed)
    gpt, vq = Transformer(recipe.config), vq.to(device)
    if projection is not None:
        gpt.cls_embedding.cap_proj.load_state_dict(projection.state_dict())
    model = WithAuxiliaryHeads(gpt).to(device)

    def shown_at(step: int) -> tuple[list[Picture], Tensor]:
        pictures = step_pictures(recipe, step)
        return pictures, rendered(pictures, recipe.low)

    shown = ahead(shown_at, recipe.steps, workers)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pictures, pixels = shown(step)
        condition, mask = condition_of(recipe, pictures, step, encode)
        codes = codes_of(vq, pixels)
        drop = torch.rand(recipe.batch, generator=torch.Generator().manual_seed(step)) < DROP
        mask = None if mask is None else mask.to(device)
        with quick(device):
            logits, states = model(condition.to(device), codes, mask, drop.to(device))
        share = max(1 - step / (recipe.guided_share * recipe.steps), 0.0)
        if not share:
            loss, notes = code_loss(logits, codes)
            return loss, {**notes, "reading": 0.0}
        with quick(device):
            reading = reading_loss(model, states, pictures, drop, step)
        weight = 1 + (recipe.object_weight - 1) * share * object_cells(pictures, recipe.config.grid).to(device)
        loss, notes = code_loss(logits, codes, weight)
        return loss + recipe.reading * share * reading, {**notes, "reading": float(reading.detach())}

    plan = Plan(steps=recipe.steps, lr=recipe.lr, warmup=100, weight_decay=0.05)
    return gpt, train(model, loss_of, plan, folder, recipe.name, resume)


@torch.no_grad()
def held_out(
    recipe: GptRecipe, gpt: Transformer, vq: VQModel, encode: Encode | None, count: int = 64
) -> dict[str, float]:
    """Loss and mean top-1 probability on pictures that no training sees."""
    first = HELD_OUT if recipe.config.model_type == "t2i" else EVAL_START + (1 << 23)
    pictures = pictures_of(recipe, first, count)
    condition, mask = condition_of(recipe, pictures, 0, encode)
    codes = codes_of(vq, rendered(pictures, recipe.low))
    loss, notes = code_loss(gpt.training_logits(condition, codes, mask, torch.zeros(count, dtype=torch.bool)), codes)
    return {"loss": float(loss), **notes}


def code_loss(logits: Tensor, codes: Tensor, weight: Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy of codes int64 [B, T], each with its weight [B, T], and the mean top-1 probability."""
    logits = logits.float().flatten(0, 1)
    each = F.cross_entropy(logits, codes.flatten(), reduction="none")
    loss = each.mean() if weight is None else (each * weight.flatten()).sum() / weight.sum()
    with torch.no_grad():
        top1 = (logits.amax(-1) - logits.logsumexp(-1)).exp().mean()
    return loss, {"top1": float(top1)}
