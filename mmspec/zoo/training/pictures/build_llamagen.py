"""Build the zoo's LlamaGen models from nothing: text to image, class to image, and the low-resolution drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline
from mmspec.imagegen.llamagen.text import CaptionEncoder

from ...architectures.caption_encoder import WIDTH
from ...files.cards import rounded, write_card
from ...files.llamagen import read_pipeline, read_vq, read_with_shared_tokenizer, write_pipeline, write_transformer
from ...world.pictures import CLASSES
from ...world.prompts import LONGEST, prompt_tokenizer
from ..loop import STATE, start_over
from .build_vq import build as build_vq
from .caption_encoder import train_encoder
from .llamagen import CLASS_SEED, FIRST_SEED, GptRecipe, held_out, train_llamagen


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


def build_t2i(out: Path, work: Path, *, resume: bool = True, device: str = "cpu") -> dict[str, Any]:
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
    return _carded(recipe, out, read_pipeline(out), figures)


def build_with_shared_tokenizer(
    out: Path, work: Path, whole: Path, recipe: GptRecipe, *, resume: bool = True, device: str = "cpu"
) -> dict[str, Any]:
    """A transformer over tokenizer and caption encoder of the pipeline in `whole`; writes it and its card to `out`."""
    shared = read_pipeline(whole).model
    encode = shared.captions if recipe.config.model_type == "t2i" else None
    gpt, figures = train_llamagen(recipe, shared.vq, encode, work / recipe.name.replace("/", "_"), resume, device)
    write_transformer(gpt.cpu(), out)
    return _carded(recipe, out, read_with_shared_tokenizer(out, whole), figures)


def _carded(recipe: GptRecipe, out: Path, pipe: LlamaGenPipeline, figures: dict[str, float]) -> dict[str, Any]:
    model = pipe.model
    start = FIRST_SEED if recipe.config.model_type == "t2i" else CLASS_SEED
    facts = {"picture_seeds": [start, start + recipe.steps * recipe.batch * recipe.choices], "model_seed": recipe.seed,
             "steps": recipe.steps, "training": rounded(figures),
             "held_out": rounded(held_out(recipe, model.transformer, model.vq, model.captions))}  # fmt: skip
    return write_card(
        out, recipe.name, model.transformer, "pictures of mmspec.zoo.world, tokenised by the zoo's VQ", **facts
    )
