"""Prompts with pictures for any class, made without its processor: pixels of the shape its forward wants, placeholders
as many as its own tower makes of them."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from tests.vlm.classes.prompts import padded
from tests.vlm.classes.recipes import RECIPES, generic
from tests.vlm.classes.rows import ONE_EACH, ROWS
from tests.vlm.classes.shrink import WORDS

COUNTS = {
    "picture": (1,),
    "pictures": (2,),
    "rows": (1, 1, 1),
    "mixed": (2, 0, 1, 1),
}  # pictures in each row of a prompt
IDS = ("image_token_id", "image_token_index", "image_patch_id", "img_context_token_id")


def picture_prompt(name: str, model: nn.Module, kind: str) -> dict[str, Tensor]:
    """One of `COUNTS`: text with pictures at several places. Raises what the class's own code raises when it cannot."""
    rng = torch.Generator().manual_seed(sum(map(ord, kind)))
    counts = COUNTS[kind]
    if name in ROWS:
        return ROWS[name](model, counts, rng)
    pixels, lengths = RECIPES.get(name, generic)(model, counts, rng)
    lengths, token = list(lengths), placeholder(model.config)
    rows = [
        _row(model.config, [lengths.pop(0) for _ in range(count)], token, 5 + 3 * n, rng)
        for n, count in enumerate(counts)
    ]
    inputs = padded(rows) | pixels
    return inputs | token_types(name, model, inputs["input_ids"], token)


def placeholder(config: object) -> int:
    """The id that stands for one vector of a picture."""
    return next(value for field in IDS if isinstance(value := getattr(config, field, None), int))


def _row(config: object, lengths: list[int], token: int, words: int, rng: torch.Generator) -> list[int]:
    def some(n: int) -> list[int]:
        return torch.randint(*WORDS, (n,), generator=rng).tolist()

    ids = some(3)
    start, end = (getattr(config, f"vision_{side}_token_id", None) for side in ("start", "end"))
    for length in lengths:
        ids += [start] if isinstance(start, int) else []
        ids += [token] * length + ([end] if isinstance(end, int) else []) + some(2)
    return ids + some(words)


def token_types(name: str, model: nn.Module, ids: Tensor, token: int) -> dict[str, Tensor]:
    """What some forwards want to know of every token beside its id."""
    wanted = forward_of(model).parameters
    found = {}
    if "mm_token_type_ids" in wanted:
        found["mm_token_type_ids"] = (ids == token).long()
    if "token_type_ids" in wanted:  # PaliGemma's mark the answer, all others' the pictures
        found["token_type_ids"] = torch.zeros_like(ids) if name.startswith("PaliGemma") else (ids == token).long()
    return found


def forward_of(model: nn.Module) -> inspect.Signature:
    return inspect.signature(model.forward)


def picture_kinds(name: str, model: nn.Module) -> tuple[str, ...]:
    """Which of `COUNTS` the class can read; none when it takes no pixels."""
    if ROWS.get(name) in ONE_EACH:
        return tuple(kind for kind, counts in COUNTS.items() if set(counts) == {1})
    return tuple(COUNTS) if name in ROWS or "pixel_values" in forward_of(model).parameters else ()
