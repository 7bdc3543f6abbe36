"""How each embedded model is built: its title, its builder and the parts it is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from mmspec.zoo.files.registry import FETCHED_DRAFTERS, folder_of, folder_with_weights, load


@dataclass(frozen=True, slots=True)
class ZooBuilder:
    """A row of the table of builders.

    Args:
        title: What the model does, for lists.
        function: `MODULE:FUNCTION` below `mmspec.zoo.training`.
        parts: Makes the arguments behind `out` and `work`: other models, their folders, and a recipe.
    """

    title: str
    function: str
    parts: Callable[[], tuple] = tuple


def build(name: str, out: Path, work: Path, **options: Any) -> dict[str, Any]:
    """Train an embedded model from nothing and write it with its card.

    Args:
        name: A name of `BUILDERS`.
        out: Folder of the weights and the card.
        work: Folder of checkpoints and logs.
        options: `resume`, `device` and `measure` (of a model and its processor); a builder gets those it takes.

    Returns:
        The card.

    Raises:
        ValueError: A model that it is built from has no weights.
    """
    row = BUILDERS[name]
    function = _training(row.function)
    known = signature(function).parameters
    return function(out, work, *row.parts(), **{key: value for key, value in options.items() if key in known})


def _training(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    return getattr(import_module(f"mmspec.zoo.training.{module}"), name)


def _drafter(name: str, title: str) -> ZooBuilder:
    """The row of a drafter, whose recipe names the target that it drafts for."""

    def parts() -> tuple:
        recipe = _training("vlm.drafter_recipes:RECIPES")[name]
        return load(recipe.target), name, recipe

    return ZooBuilder(title, "vlm.build_drafter:build", parts)


def _llamagen(title: str, recipe: str) -> ZooBuilder:
    """The row of a model that shares the tokenizer of "t2i"."""
    return ZooBuilder(
        title,
        "image.build_llamagen:build_with_shared_tokenizer",
        lambda: (folder_of("t2i"), _training(f"image.build_llamagen:{recipe}")()),
    )


def _vlm(title: str, recipe: str) -> ZooBuilder:
    return ZooBuilder(title, "vlm.build_vlm:build", lambda: (_training(f"vlm.build_vlm:{recipe}")(),))


def _continuous(title: str, module: str, recipe: str, *folders: str) -> ZooBuilder:
    """The row of a model of continuous tokens, measured by the detector of pictures."""

    def parts() -> tuple:
        made = _training(f"continuous.{module}:{recipe}")()
        return (*map(folder_with_weights, folders), load("image_judge"), made)

    return ZooBuilder(title, f"continuous.{module}:build", parts)


_DRAFTERS = {
    "vlm/eagle": "EAGLE-2 drafter for vlm, pictures fused like text",
    "vlm/eagle_text": "EAGLE-2 drafter for vlm that sees no pictures",
    "vlm/msd": "MSD drafter for vlm",
    "vlm/vispec": "ViSpec drafter for vlm",
    "vlm/flash": "FLASH drafter for vlm",
    "vlm/specvlm": "SpecVLM drafter for vlm",
    "vlm/eagle3": "EAGLE-3 drafter for vlm",
    "vlm/dflash": "DFlash drafter for vlm, a block of tokens a pass",
    "vlm/dflash_vision": "DFlash drafter for vlm that reads a picture in 16 rows",
    "vlm/dspark": "DSpark drafter for vlm: blocks over pictures in 16 rows, every token drawn behind those before it",
    "vlm/hybrid/dflash": "DFlash drafter for vlm/hybrid",
    "vlm/hybrid/mtp": "MTP layer for vlm/hybrid",
    "smollm2/eagle3": FETCHED_DRAFTERS["smollm2/eagle3"],
    "vlm/smol/msd": "MSD drafter for vlm/smol",
    "vlm/smol/vispec": "ViSpec drafter for vlm/smol",
    "vlm/smol/dspark": "DSpark drafter for vlm/smol",
}
BUILDERS: dict[str, ZooBuilder] = {
    "vlm": _vlm("captions and answers about pictures of the world (LLaVA)", "VlmRecipe"),
    "vlm/small": _vlm("a narrower captioner that drafts for vlm (LLaVA)", "small_recipe"),
    **{name: _drafter(name, title) for name, title in _DRAFTERS.items()},
    "vlm/hybrid": ZooBuilder(
        "captions, answers and transcribed documents; gated delta and full attention layers (Qwen3.5)",
        "vlm.build_hybrid:build",
    ),
    "vlm/smol": ZooBuilder(
        "captions and answers about pictures of the world, and chat, in SmolLM2's words (LLaVA over the fetched smollm2)",
        "vlm.build_smol:build",
        lambda: (load("smollm2"), folder_with_weights("vlm"), _training("vlm.build_smol:SmolRecipe")()),
    ),
    "vlm/specdecpp": ZooBuilder(
        "SpecDec++ head that ends the drafts of vlm/eagle",
        "vlm.build_drafter:build_acceptance_head",
        lambda: (load("vlm"), load("vlm/eagle")),
    ),
    "t2i": ZooBuilder("64x64 pictures from prompts, 256 codes (LlamaGen)", "image.build_llamagen:build_t2i"),
    "c2i": _llamagen("64x64 pictures from 64 classes, 256 codes (LlamaGen)", "c2i_recipe"),
    "t2i/low": _llamagen(
        "32x32 pictures from prompts, 64 codes: MuLo-SD drafts with this model (LlamaGen)", "low_recipe"
    ),
    "t2i/eagle": ZooBuilder("EAGLE drafter for t2i", "image.build_eagle:build", lambda: (load("t2i"),)),
    "t2i/upsampler": ZooBuilder(
        "codes of 32x32 pictures into those of 64x64 ones, for MuLo-SD",
        "image.build_upsampler:build",
        lambda: (folder_of("t2i") / "vq",),
    ),
    "video/tokens": ZooBuilder(
        "8 frames of 32x32 pixels from prompts of motion, 64 codes each (LlamaGen)",
        "video.build_tokens:build",
        lambda: (folder_with_weights("t2i") / "vq", folder_with_weights("video")),
    ),
    "video/vae": ZooBuilder(
        "videos of 64x64 pixels as 8x8 cells of 8 channels every four frames, and back, frame by frame (Wan VAE)",
        "video.build_vae:build",
    ),
    "video": ZooBuilder(
        "64x64 videos from prompts of motion, block by block (block-causal Wan)",
        "video.build_target:build",
        lambda: (folder_with_weights("video/vae"),),
    ),
    "video/draft": ZooBuilder(
        "a smaller video model that drafts for it",
        "video.build_draft:build",
        lambda: (folder_with_weights("video/vae"), folder_with_weights("video")),
    ),
    "video/reward": ZooBuilder(
        "scores how much of a prompt a frame shows",
        "video.build_reward:build",
        lambda: (load("video"), load("video/draft")),
    ),
    "kl": ZooBuilder(
        "64x64 pictures as 8x8 cells of 16 continuous channels, and back (KL autoencoder)",
        "continuous.build_kl:build",
        lambda: (load("image_judge"),),
    ),
    "mar": _continuous(
        "64x64 pictures from 64 classes or prompts, 64 continuous tokens in any order (MAR)",
        "build_mar",
        "target_recipe",
        "kl",
        "t2i",
    ),
    "mar/draft": _continuous("a smaller mar that drafts for it", "build_mar", "draft_recipe", "kl", "t2i"),
    "car": _continuous(
        "64x64 pictures from 64 classes, 64 continuous tokens in raster order", "build_car", "target_recipe", "kl"
    ),
    "car/draft": _continuous("a smaller car that drafts for it", "build_car", "draft_recipe", "kl"),
    "clip": ZooBuilder("features of 64x64 pictures and their prompts (open_clip)", "image.build_scorers:build_clip"),
    "image_judge": ZooBuilder("finds the objects of 64x64 pictures", "image.build_scorers:build_detector"),
}
