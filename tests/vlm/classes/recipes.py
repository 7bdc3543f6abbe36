"""Pixels for any class: by the arguments its `get_image_features` takes, by name where those do not tell."""

from __future__ import annotations

import inspect
from functools import partial

import torch
from torch import Tensor, nn

from tests.vlm.classes.shrink import PATCH, SIDE

Made = tuple[dict[str, Tensor], list[int]]
GRIDS = ((1, 4, 4), (1, 4, 6), (1, 6, 4))


def generic(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Pixels of all pictures of a prompt, and how many placeholders each takes."""
    features, total = feature_maker(model), sum(counts)
    wanted = inspect.signature(features).parameters
    vision = getattr(model.config, "vision_config", None)
    if "image_grid_thw" in wanted:
        pixels = patches(vision, total, rng)
        if "image_merge_sizes" in inspect.signature(model.forward).parameters:
            pixels["image_merge_sizes"] = torch.full((total,), 2)
    elif getattr(model.config, "image_grid_pinpoints", None) is not None:
        sizes = torch.tensor([[7, 15], [13, 16], [16, 9]])[torch.arange(total) % 3]
        pixels = {"pixel_values": torch.randn(total, 5, 3, SIDE, SIDE, generator=rng), "image_sizes": sizes}
        if "batch_num_images" in wanted:
            pixels["batch_num_images"] = torch.tensor([count for count in counts if count])
    elif "pixel_attention_mask" in wanted:
        return by_row(model, counts, rng)
    else:
        side = 2 * SIDE if "image_sizes" in wanted else SIDE
        pixels = {"pixel_values": torch.randn(total, 3, side, side, generator=rng)}
        if "image_sizes" in wanted:
            pixels["image_sizes"] = torch.tensor([[side, side]] * total)
    return pixels, lengths_of(features(**pixels, return_dict=True), total)


def patches(vision: object, total: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Flat patches and the grid of every picture."""
    grid = torch.tensor(GRIDS)[torch.arange(total) % 3]
    frames = next((getattr(vision, n) for n in ("temporal_patch_size", "patch_temporal") if hasattr(vision, n)), 1)
    side = vision.patch_size
    size = 3 * frames * side * side
    return {"pixel_values": torch.randn(int(grid.prod(-1).sum()), size, generator=rng), "image_grid_thw": grid}


def by_row(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Pixels [rows, most pictures in a row, 3, S, S]; pictures a row does not have are black, as its processor pads."""
    pixels = torch.zeros(len(counts), max(counts), 3, SIDE, SIDE)
    for row, count in enumerate(counts):
        pixels[row, :count] = torch.randn(count, 3, SIDE, SIDE, generator=rng)
    inputs, features = {"pixel_values": pixels}, feature_maker(model)
    if "tile_fine_mask" in inspect.signature(model.forward).parameters:  # a mask of tiles, not of pixels
        inputs["pixel_attention_mask"] = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    made = lengths_of(features(**inputs, return_dict=True), 1)
    return inputs, [sum(made) // sum(counts)] * sum(counts)


def feature_maker(model: nn.Module) -> object:
    """`get_image_features` of the class, of its inner model where the outer one has none or hides its arguments."""
    own, inner = (getattr(part, "get_image_features", None) for part in (model, getattr(model, "model", None)))
    maker = inner if own is None or (inner is not None and "args" in inspect.signature(own).parameters) else own
    strategy = inspect.signature(maker).parameters.get("vision_feature_select_strategy")
    if strategy is not None and strategy.default is inspect.Parameter.empty:  # Llama 4 of older versions
        return partial(maker, vision_feature_select_strategy=model.config.vision_config.vision_feature_select_strategy)
    return maker


def lengths_of(out: object, total: int) -> list[int]:
    """Vectors of every picture in what `get_image_features` returns."""
    if getattr(out, "deepstack_features", None) and isinstance(out.deepstack_features[0][0], int):
        return lengths_of(out.deepstack_features[0][1], total)  # of Granite 4 Vision: layer, vectors
    made = getattr(out, "pooler_output", out)
    made = out.last_hidden_state if made is None else made  # Llama 4
    if isinstance(made, list | tuple):
        return [part.shape[:-1].numel() for part in made]
    return [made.shape[:-1].numel() // total] * total


def positioned(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Gemma 4: 16 patches of every picture with their places, of another shape each."""
    total, side = sum(counts), model.config.vision_config.patch_size
    grids = [torch.cartesian_prod(torch.arange(h), torch.arange(16 // h)).flip(-1) for h in (4, 2, 8)]
    inputs = {
        "pixel_values": torch.rand(total, 16, 3 * side * side, generator=rng),
        "image_position_ids": torch.stack([grids[n % 3] for n in range(total)]),
    }
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), total)


def shaped(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """LFM2-VL: flat patches of every picture, padded, with its shape in patches and a mask."""
    total, side = sum(counts), model.config.vision_config.patch_size
    shapes = torch.tensor([[2, 4], [4, 2], [2, 2]])[torch.arange(total) % 3]
    inputs = {
        "pixel_values": torch.randn(total, 8, 3 * side * side, generator=rng),
        "spatial_shapes": shapes,
        "pixel_attention_mask": (torch.arange(8) < shapes.prod(-1)[:, None]).long(),
    }
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), total)


def tiles(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator, side: int = SIDE, **more: Tensor) -> Made:
    """Square pictures [pictures, 3, side, side] and further arguments of `get_image_features`."""
    inputs = {"pixel_values": torch.randn(sum(counts), 3, side, side, generator=rng), **more}
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


def wide(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Towers of timm, whose smallest stride is 32."""
    return tiles(model, counts, rng, side=64)


def one_tile(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Perception-LM: pictures of one tile [pictures, 1, 3, S, S]."""
    inputs = {"pixel_values": torch.randn(sum(counts), 1, 3, 32, 32, generator=rng)}
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


def two_resolutions(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """DeepSeek-VL hybrid."""
    return tiles(model, counts, rng, high_res_pixel_values=torch.randn(sum(counts), 3, SIDE, SIDE, generator=rng))


def square_patches(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Kimi-K2.5, PaddleOCR-VL: patches [patches, 3, P, P] with grids."""
    inputs = patches(model.config.vision_config, sum(counts), rng)
    inputs["pixel_values"] = inputs["pixel_values"].reshape(-1, 3, PATCH, PATCH)
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


def row_patches(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Fuyu: flat patches [pictures, patches, 3 P P]."""
    inputs = {"pixel_values": torch.randn(sum(counts), 4, 3 * PATCH * PATCH, generator=rng)}
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


def target_sizes(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """MiniCPM-V: one row of patches [1, 3, P, all patches x P] and each picture's size in patches."""
    sizes = torch.tensor([[4, 4], [4, 8], [8, 4]])[torch.arange(sum(counts)) % 3]
    inputs = {
        "pixel_values": torch.randn(1, 3, PATCH, int(sizes.prod(-1).sum()) * PATCH, generator=rng),
        "target_sizes": sizes.int(),
    }
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


def pooled(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Molmo 2: one crop of 2 x 2 patches for every picture, each placeholder an average of two patches."""
    total = sum(counts)
    pooling = torch.tensor([[0, 1], [2, 3]]) + 4 * torch.arange(total)[:, None, None]
    inputs = {
        "pixel_values": torch.randn(total, 4, 3 * PATCH * PATCH, generator=rng),
        "image_token_pooling": pooling.flatten(0, 1),
        "image_grids": torch.tensor([[1, 2, 0, 0]] * total),
        "image_num_crops": torch.ones(total, dtype=torch.long),
    }
    return inputs, [2] * total


def flat_grids(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> Made:
    """Nemotron-H Omni: flat patches with grids [pictures, 2]."""
    grid = torch.tensor([[4, 4], [4, 6], [6, 4]])[torch.arange(sum(counts)) % 3]
    inputs = {
        "pixel_values": torch.randn(int(grid.prod(-1).sum()), 3 * PATCH * PATCH, generator=rng),
        "image_grid_hw": grid,
    }
    return inputs, lengths_of(feature_maker(model)(**inputs, return_dict=True), sum(counts))


RECIPES = {
    "DeepseekVLHybridForConditionalGeneration": two_resolutions,
    "FastVlmForConditionalGeneration": wide,
    "FuyuForCausalLM": row_patches,
    "Gemma3nForConditionalGeneration": wide,
    "Gemma4ForConditionalGeneration": positioned,
    "Gemma4UnifiedForConditionalGeneration": positioned,
    "Kimi_K25ForConditionalGeneration": square_patches,
    "Lfm2VlForConditionalGeneration": shaped,
    "MiniCPMOcrForConditionalGeneration": target_sizes,
    "MiniCPMV4_6ForConditionalGeneration": target_sizes,
    "MiniCPMV4_7ForConditionalGeneration": target_sizes,
    "Molmo2ForConditionalGeneration": pooled,
    "NemotronH_Omni_Reasoning_V3": flat_grids,
    "PaddleOCRVLForConditionalGeneration": square_patches,
    "PerceptionLMForConditionalGeneration": one_tile,
}
