"""The zoo's LlamaGen models from nothing: text to image, class to image, and the low-resolution drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.text import CaptionEncoder
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel

from ..architectures.auxiliary_heads import Asked, object_cells
from ..architectures.caption_encoder import WIDTH, train_encoder
from ..files.llamagen import read_beside, read_pipeline, read_vq, write_pipeline, write_transformer
from ..world.pictures import CLASSES, Picture, class_picture, low_res, sample_picture
from ..world.prompts import LONGEST, prompt_of, prompt_tokenizer
from ..world.scene import EVAL_START
from .build_vlm import write_card
from .build_vq import build as build_vq
from .loop import STATE, Plan, start_over, train
from .picture_batches import HELD_OUT, picture_arrays, to_pixels

FIRST_SEED = 1 << 29
CLASS_SEED = FIRST_SEED + (1 << 28)
DROP = 0.1  # rows whose condition is replaced by the null one, for guidance
Encode = Callable[[list[str]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class GptRecipe:
    """Everything that decides a zoo LlamaGen. low: it draws 32x32 pictures, 8x8 codes.

    reading, object_weight: see `prompt_reading`; both fade, to 0 and 1, over `guided_share` of the steps.
    choices: pictures drawn for each one trained on, see `trained_on`: only pictures of two objects teach which color
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


def t2i_recipe(steps: int = 6000) -> GptRecipe:
    """Text to image: 256 codes, prompts as features of the caption encoder."""
    config = GPTConfig(dim=192, n_layer=8, n_head=6, multiple_of=64, vocab_size=1024, block_size=256, model_type="t2i",
                       cls_token_num=LONGEST, caption_dim=WIDTH)  # fmt: skip
    return GptRecipe("t2i", config, steps, choices=3)


def c2i_recipe(steps: int = 4500) -> GptRecipe:
    """Class to image: 64 classes, shape by color."""
    config = GPTConfig(dim=128, n_layer=6, n_head=4, multiple_of=64, vocab_size=1024, block_size=256, model_type="c2i",
                       cls_token_num=1, num_classes=CLASSES)  # fmt: skip
    return GptRecipe("c2i", config, steps)


def low_recipe(steps: int = 3000) -> GptRecipe:
    """Text to a picture of half the side, in the same codes: what MuLo-SD drafts with."""
    config = GPTConfig(dim=128, n_layer=6, n_head=4, multiple_of=64, vocab_size=1024, block_size=64, model_type="t2i",
                       cls_token_num=LONGEST, caption_dim=WIDTH)  # fmt: skip
    return GptRecipe("t2i/low", config, steps, batch=32, low=True, choices=2)


def pictures_of(recipe: GptRecipe, first: int, count: int) -> list[Picture]:
    """Pictures of `count` seeds: of a class each where the model is class-conditional."""
    if recipe.config.model_type == "t2i":
        return [sample_picture(first + i) for i in range(count)]
    return [class_picture((first + i) % CLASSES, first + i) for i in range(count)]


def trained_on(recipe: GptRecipe, step: int) -> list[Picture]:
    """The pictures of a training step, of `recipe.choices` each the one with most objects. A prompt says how many objects
    there are, so a picture's law given its prompt stays."""
    first = FIRST_SEED if recipe.config.model_type == "t2i" else CLASS_SEED
    size = recipe.batch * recipe.choices
    drawn = pictures_of(recipe, first + step * size, size)
    groups = [drawn[i : i + recipe.choices] for i in range(0, size, recipe.choices)]
    return [max(group, key=lambda one: len(one.items)) for group in groups]


@torch.no_grad()
def codes_of(vq: VQModel, pictures: list[Picture], low: bool = False) -> Tensor:
    """The tokenizer's codes of rendered pictures, int64 [B, 256], or [B, 64] of pictures of half the side."""
    arrays, device = picture_arrays(pictures), vq.quantize.embedding.weight.device
    with torch.autocast(device.type, torch.bfloat16):
        return vq.encode(to_pixels(low_res(arrays) if low else arrays).to(device))[1]


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
) -> tuple[Transformer, dict[str, float]]:
    """Trains on pictures rendered and tokenised as it goes; returns the model and its last mean loss and top-1 figures.

    projection: what the transformer's own caption projection starts as.   The last loss is of codes alone, all of one weight.
    """
    torch.manual_seed(recipe.seed)
    gpt, vq = Transformer(recipe.config), vq.to(device)
    if projection is not None:
        gpt.cls_embedding.cap_proj.load_state_dict(projection.state_dict())
    asked = Asked(gpt).to(device)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pictures = trained_on(recipe, step)
        condition, mask = condition_of(recipe, pictures, step, encode)
        codes = codes_of(vq, pictures, recipe.low)
        drop = torch.rand(recipe.batch, generator=torch.Generator().manual_seed(step)) < DROP
        mask = None if mask is None else mask.to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            logits, states = asked(condition.to(device), codes, mask, drop.to(device))
        share = max(1 - step / (recipe.guided_share * recipe.steps), 0.0)
        if not share:
            loss, notes = _loss(logits, codes)
            return loss, {**notes, "reading": 0.0}
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            reading = asked.reading_loss(states, pictures, drop, step)
        weight = 1 + (recipe.object_weight - 1) * share * object_cells(pictures, recipe.config.grid).to(device)
        loss, notes = _loss(logits, codes, weight)
        return loss + recipe.reading * share * reading, {**notes, "reading": float(reading.detach())}

    plan = Plan(steps=recipe.steps, lr=recipe.lr, warmup=100, weight_decay=0.05)
    return gpt, train(asked, loss_of, plan, folder, recipe.name, resume)


@torch.no_grad()
def held_out(
    recipe: GptRecipe, gpt: Transformer, vq: VQModel, encode: Encode | None, count: int = 64
) -> dict[str, float]:
    """Loss and mean top-1 probability on pictures that no training sees."""
    first = HELD_OUT if recipe.config.model_type == "t2i" else EVAL_START + (1 << 23)
    pictures = pictures_of(recipe, first, count)
    condition, mask = condition_of(recipe, pictures, 0, encode)
    codes = codes_of(vq, pictures, recipe.low)
    loss, notes = _loss(gpt.training_logits(condition, codes, mask, torch.zeros(count, dtype=torch.bool)), codes)
    return {"loss": float(loss), **notes}


def _loss(logits: Tensor, codes: Tensor, weight: Tensor | None = None) -> tuple[Tensor, dict[str, float]]:
    logits = logits.float().flatten(0, 1)
    each = F.cross_entropy(logits, codes.flatten(), reduction="none")
    loss = each.mean() if weight is None else (each * weight.flatten()).sum() / weight.sum()
    with torch.no_grad():
        top1 = (logits.amax(-1) - logits.logsumexp(-1)).exp().mean()
    return loss, {"top1": float(top1)}


def build_t2i(out: Path, work: Path, resume: bool = True, device: str = "cpu") -> dict[str, Any]:
    """Tokenizer, caption encoder and transformer; writes the pipeline in fp16 and its card to `out`, returns the card."""
    recipe = t2i_recipe()
    begun = (work / "vq" / STATE).exists()
    if not resume:
        start_over(work / "caption_encoder", work / recipe.name)
    if not resume or begun or not (out / "vq" / "model.safetensors").exists():
        build_vq(out / "vq", work, resume=resume, device=device)
    vq = read_vq(out / "vq")
    reader = train_encoder(work / "caption_encoder", recipe.config.dim, resume=resume)
    encode = CaptionEncoder(reader.encoder, prompt_tokenizer(), LONGEST)
    gpt, figures = train_llamagen(recipe, vq, encode, work / recipe.name, resume, device, reader.projection)
    write_pipeline(gpt.cpu(), vq.cpu(), reader.encoder, prompt_tokenizer(), out)
    model = read_pipeline(out).model
    return _card(recipe, out, figures, held_out(recipe, model.transformer, model.vq, model.captions))


def build_beside(
    recipe: GptRecipe, whole: Path, out: Path, work: Path, resume: bool = True, device: str = "cpu"
) -> dict[str, Any]:
    """A transformer over tokenizer and caption encoder of the pipeline in `whole`; writes it and its card to `out`."""
    shared = read_pipeline(whole).model
    encode = shared.captions if recipe.config.model_type == "t2i" else None
    gpt, figures = train_llamagen(recipe, shared.vq, encode, work / recipe.name.replace("/", "_"), resume, device)
    write_transformer(gpt.cpu(), out)
    model = read_beside(out, whole).model
    return _card(recipe, out, figures, held_out(recipe, model.transformer, model.vq, encode))


def _card(recipe: GptRecipe, out: Path, figures: dict[str, float], measured: dict[str, float]) -> dict[str, Any]:
    start = FIRST_SEED if recipe.config.model_type == "t2i" else CLASS_SEED
    parameters = sum(value.numel() for value in Transformer(recipe.config).parameters())
    card = {
        "name": recipe.name, "class": "mmspec.imagegen.llamagen.transformer.Transformer", "licence": "Apache-2.0",
        "parameters": parameters, "data": "pictures of mmspec.zoo.world, tokenised by the zoo's VQ",
        "picture_seeds": [start, start + recipe.steps * recipe.batch * recipe.choices], "model_seed": recipe.seed,
        "steps": recipe.steps,
        "training": {key: round(value, 4) for key, value in figures.items()},
        "held_out": {key: round(value, 4) for key, value in measured.items()},
        "command": f"mmspec zoo build {recipe.name}",
    }  # fmt: skip
    write_card(out, card)
    return card
