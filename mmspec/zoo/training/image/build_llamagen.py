"""Build the zoo's LlamaGen models on images rendered and tokenised on the fly: t2i, c2i and the low-resolution drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.imagegen.llamagen.captions import CaptionEncoder
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQModel
from mmspec.zoo.architectures.caption_encoder import WIDTH
from mmspec.zoo.files.image import read_pipeline, read_vq, read_with_shared_tokenizer, write_pipeline, write_transformer
from mmspec.zoo.training.code_models import DROP, CodeRecipe, code_loss
from mmspec.zoo.training.facts import IMAGE_FACTS, code_labels, object_cells, train_image_prompt_encoder
from mmspec.zoo.training.image.build_vq import build as build_vq
from mmspec.zoo.training.loop import STATE, autocast, prefetched, start_over
from mmspec.zoo.world.image import (
    CLASSES,
    HELD_OUT,
    LONGEST,
    ImageScene,
    class_image_scene,
    image_prompt,
    image_prompt_tokenizer,
    low_res,
    sample_image_scene,
)
from mmspec.zoo.world.pixels import image_arrays, to_pixels
from mmspec.zoo.world.scene import EVAL_START

FIRST_SEED = 1 << 29
CLASS_SEED = FIRST_SEED + (1 << 28)
Encode = Callable[[list[str]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class GptRecipe(CodeRecipe):
    data = "pictures of mmspec.zoo.world, tokenised by the zoo's VQ"
    low: bool = False  # pictures of 32x32 pixels, 8x8 codes
    choices: int = 1  # per training picture, see `step_scenes`; two objects teach which color belongs to which shape

    @property
    def first(self) -> int:
        return FIRST_SEED if self.config.model_type == "t2i" else CLASS_SEED

    def seeds(self) -> dict[str, Any]:
        return {"picture_seeds": [self.first, self.first + self.steps * self.batch * self.choices]}


def scenes_of(recipe: GptRecipe, first: int, count: int) -> list[ImageScene]:
    """Return the pictures of `count` seeds; for a class-conditional model, the classes take turns."""
    if recipe.config.model_type == "t2i":
        return [sample_image_scene(first + i) for i in range(count)]
    return [class_image_scene((first + i) % CLASSES, first + i) for i in range(count)]


def step_scenes(recipe: GptRecipe, step: int) -> list[ImageScene]:
    """Return the pictures of a training step: of each `recipe.choices`, the picture with most objects. A prompt states
    their number, so the distribution of pictures given their prompts is unchanged."""
    size = recipe.batch * recipe.choices
    drawn = scenes_of(recipe, recipe.first + step * size, size)
    groups = [drawn[i : i + recipe.choices] for i in range(0, size, recipe.choices)]
    return [max(group, key=lambda scene: len(scene.items)) for group in groups]


def rendered_pixels(pictures: list[ImageScene], low: bool = False) -> Tensor:
    """Return float32 [B, 3, H, W], at half the side if `low`."""
    arrays = image_arrays(pictures)
    return to_pixels(low_res(arrays) if low else arrays)


@torch.no_grad()
def codes_of(vq: VQModel, pixels: Tensor) -> Tensor:
    """Return int64 [B, 256], or [B, 64] for pictures of half the side."""
    device = vq.quantize.embedding.weight.device
    with autocast(device):
        return vq.encode(pixels.to(device))[1]


def condition_of(
    recipe: GptRecipe, pictures: list[ImageScene], seed: int, encode: Encode | None
) -> tuple[Tensor, Tensor | None]:
    """Return labels int64 [B] and None without an encoder, or features float [B, 32, 128] and their mask bool [B, 32]."""
    if recipe.config.model_type == "c2i":
        first = [p.items[0].label for p in pictures]
        return torch.tensor(first), None
    return encode([image_prompt(picture, seed) for picture in pictures])


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
    """Train on pictures that are rendered and tokenised on the fly, `workers` ahead (see `prefetched`). The last loss
    is that of the codes alone, equally weighted."""
    model, vq = recipe.new_model(projection).to(device), vq.to(device)

    def shown_at(step: int) -> tuple[list[ImageScene], Tensor]:
        pictures = step_scenes(recipe, step)
        return pictures, rendered_pixels(pictures, recipe.low)

    shown = prefetched(shown_at, recipe.steps, workers)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pictures, pixels = shown(step)
        condition, mask = condition_of(recipe, pictures, step, encode)
        codes = codes_of(vq, pixels)
        drop = torch.rand(recipe.batch, generator=torch.Generator().manual_seed(step)) < DROP
        mask = None if mask is None else mask.to(device)
        with autocast(device):
            logits, states = model(condition.to(device), codes, mask, drop.to(device))
        share = recipe.guided(step)
        if not share:
            loss, notes = code_loss(logits, codes)
            return loss, {**notes, "reading": 0.0}
        with autocast(device):
            labels = code_labels(pictures, recipe.config.grid)
            reading = IMAGE_FACTS.reading_loss(model, states, pictures, labels, drop, step)
        weight = 1 + (recipe.object_weight - 1) * share * object_cells(pictures, recipe.config.grid).to(device)
        loss, notes = code_loss(logits, codes, weight)
        return loss + recipe.reading * share * reading, {**notes, "reading": float(reading.detach())}

    return model.gpt, recipe.train(model, loss_of, folder, resume)


@torch.no_grad()
def held_out(
    recipe: GptRecipe, gpt: Transformer, vq: VQModel, encode: Encode | None, count: int = 64
) -> dict[str, float]:
    """Return loss and mean top-1 probability on held-out pictures."""
    first = HELD_OUT if recipe.config.model_type == "t2i" else EVAL_START + (1 << 23)
    pictures = scenes_of(recipe, first, count)
    condition, mask = condition_of(recipe, pictures, 0, encode)
    codes = codes_of(vq, rendered_pixels(pictures, recipe.low))
    loss, notes = code_loss(gpt.training_logits(condition, codes, mask, torch.zeros(count, dtype=torch.bool)), codes)
    return {"loss": float(loss), **notes}


def t2i_recipe(steps: int = 6000) -> GptRecipe:
    """256 codes, prompts as features of the caption encoder."""
    config = GPTConfig(
        dim=192,
        n_layer=8,
        n_head=6,
        multiple_of=64,
        vocab_size=1024,
        block_size=256,
        model_type="t2i",
        cls_token_num=LONGEST,
        caption_dim=WIDTH,
    )
    return GptRecipe("t2i", config, steps, choices=3)


def c2i_recipe(steps: int = 4500) -> GptRecipe:
    """64 classes of shape and color."""
    config = GPTConfig(
        dim=128,
        n_layer=6,
        n_head=4,
        multiple_of=64,
        vocab_size=1024,
        block_size=256,
        model_type="c2i",
        cls_token_num=1,
        num_classes=CLASSES,
    )
    return GptRecipe("c2i", config, steps)


def low_recipe(steps: int = 3000) -> GptRecipe:
    """The drafter of MuLo-SD: text to a picture of half the side, in the same codes."""
    config = GPTConfig(
        dim=128,
        n_layer=6,
        n_head=4,
        multiple_of=64,
        vocab_size=1024,
        block_size=64,
        model_type="t2i",
        cls_token_num=LONGEST,
        caption_dim=WIDTH,
    )
    return GptRecipe("t2i/low", config, steps, batch=32, low=True, choices=2)


def build_t2i(out: Path, work: Path, *, resume: bool = True, device: str = "cpu") -> dict[str, Any]:
    """Train tokenizer, caption encoder and transformer, and write the pipeline in fp16 with its card."""
    recipe = t2i_recipe()
    begun = (work / "vq" / STATE).exists()
    if not resume:
        start_over(work / "caption_encoder", work / recipe.name)
    if not resume or begun or not (out / "vq" / "model.safetensors").exists():
        build_vq(out / "vq", work, resume=resume, device=device)
    vq = read_vq(out / "vq")
    reader = train_image_prompt_encoder(work / "caption_encoder", recipe.config.dim, resume=resume)
    encode = CaptionEncoder(reader.encoder, image_prompt_tokenizer(), LONGEST)
    gpt, figures = train_llamagen(recipe, vq, encode, work / recipe.name, resume, device, reader.projection)
    write_pipeline(gpt.cpu(), vq.cpu(), reader.encoder, image_prompt_tokenizer(), out)
    return _carded(recipe, out, read_pipeline(out), figures)


def build_with_shared_tokenizer(
    out: Path, work: Path, whole: Path, recipe: GptRecipe, *, resume: bool = True, device: str = "cpu"
) -> dict[str, Any]:
    """Train a transformer over the tokenizer and caption encoder in `whole`, and write it with its card."""
    shared = read_pipeline(whole).model
    encode = shared.captions if recipe.config.model_type == "t2i" else None
    gpt, figures = train_llamagen(recipe, shared.vq, encode, work / recipe.folder, resume, device)
    write_transformer(gpt.cpu(), out)
    return _carded(recipe, out, read_with_shared_tokenizer(out, whole), figures)


def _carded(recipe: GptRecipe, out: Path, pipe: LlamaGenPipeline, figures: dict[str, float]) -> dict[str, Any]:
    model = pipe.model
    measured = held_out(recipe, model.transformer, model.vq, model.captions)
    return recipe.card(out, model.transformer, figures, {"held_out": measured})
