"""The cost of a picture before the decoder: its vision tower and the projection to the decoder's width."""

from __future__ import annotations

from typing import Any

from torch import nn

from mmspec.estimate.work import NOTHING, Work, product

VARIABLE = 576  # prompt tokens of a picture, for models that take pictures of any size
# modules after the tower, whose rows are prompt tokens
_BEHIND = ("multi_modal_projector", "merger", "connector", "aligner")


def picture_work(model: nn.Module, tokens: int | None = None) -> tuple[Work, int]:
    """Return the work of a picture, by the modules that it passes through, and its prompt tokens: by default the
    config's number, or `VARIABLE`. A model without a vision tower has no work and 0 tokens."""
    config = getattr(model.config, "vision_config", None)
    if config is None:
        return NOTHING, 0
    fixed = getattr(model.config, "image_seq_length", None) or getattr(model.config, "mm_tokens_per_image", None)
    if tokens is not None and fixed not in (None, tokens):
        raise ValueError(f"--picture-tokens: expected {fixed}, the model's own number, got {tokens}, leave it out")
    tokens = tokens or fixed or VARIABLE
    merged = getattr(config, "spatial_merge_size", None)
    patches = tokens * merged**2 if merged else _grid(config, tokens)
    work = NOTHING
    for name, module in model.named_modules():
        if not _sees_pictures(name):
            continue
        rows = tokens if any(part in name.split(".") for part in _BEHIND) else patches
        if isinstance(module, nn.Linear):
            work += product(rows, module.in_features, module.out_features)
        elif isinstance(module, nn.Conv2d | nn.Conv3d):
            work += product(patches, module.weight[0].numel(), module.out_channels)
        elif not list(module.children()):
            work += Work(calls=1)
    return work + _attention(config, patches), tokens


def _sees_pictures(name: str) -> bool:
    parts = name.split(".")
    return any(part in ("vision_tower", "vision_model", "visual", *_BEHIND) for part in parts)


def _grid(config: Any, tokens: int) -> int:
    """Return the patches of a tower with a fixed image size."""
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    return (size // patch) ** 2 if isinstance(size, int) and isinstance(patch, int) else tokens


def _attention(config: Any, patches: int) -> Work:
    """Return the attention of all layers; layers with windows see the patches of a window."""
    depth = getattr(config, "depth", None) or config.num_hidden_layers
    full = len(getattr(config, "fullatt_block_indexes", ())) or depth
    window = getattr(config, "window_size", None)
    inside = min(patches, (window // config.patch_size) ** 2) if window and full != depth else patches
    flops = 4 * patches * config.hidden_size * (full * patches + (depth - full) * inside)
    return Work(flops=flops, calls=depth)
