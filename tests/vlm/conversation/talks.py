"""Conversations for tests: tiny models, two pictures, three turns, made without a processor."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import placeholders_of
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.pictures import picture_prompt, placeholder, token_types
from tests.vlm.classes.variants import variants
from tests.vlm.drafts import Scripted
from tests.vlm.tiny import IMAGE, VLMS, prompt, tiny

WORDS = ([11, 12, 13, 14, 15], [21, 22, 23])  # what a user says in turns without pictures
TOWERS = ("visual", "vision_tower", "vision_model", "vision_encoder", "vision_backbone")


class Known(Scripted):
    """Scripted drafts, which need nothing of earlier turns but their ids."""

    from_ids = True


@dataclass
class Talk:
    """Three turns about two pictures. inputs: of a prompt with both.   apart: the second one comes with the second turn."""

    name: str
    model: nn.Module
    inputs: dict[str, Tensor]
    token: int
    apart: bool

    def turn(self, number: int, said: Tensor | None) -> dict[str, Tensor]:
        """The inputs of the whole conversation, `said` [1, L] so far."""
        whole = self.inputs["input_ids"]
        cut = second(whole[0].tolist(), self.token, self.model) if self.apart else whole.shape[1]
        if number == 0:
            ids = whole[:, :cut]
        elif number == 1 and self.apart:
            ids = torch.cat([said, whole[:, cut:]], 1)
        else:
            ids = torch.cat([said, torch.tensor([WORDS[number - 1]])], 1)
        return self.of(ids, 1 if self.apart and number == 0 else 2)

    def of(self, ids: Tensor, pictures: int) -> dict[str, Tensor]:
        """The inputs of a prompt that shows so many of the pictures."""
        text = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
        pixels = {name: one for name, one in self.inputs.items() if name not in text}
        found = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            **(first(pixels) if pictures == 1 else pixels),
        }
        if "mm_token_type_ids" in self.inputs:
            found["mm_token_type_ids"] = (ids == self.token).long()
        if "token_type_ids" in self.inputs:
            found |= {"token_type_ids": token_types(self.name, self.model, ids, self.token)["token_type_ids"]}
        return found


def talk(name: str, apart: bool = False) -> Talk:
    """A conversation with a tiny model of `tests.vlm.tiny`, or of any class by its name; "window" behind a colon for its
    variant with small windows."""
    if name in VLMS:
        return Talk(name, speaking(tiny(name)), prompt(name, 2), IMAGE, apart)
    name, _, variant = name.partition(":")
    model = speaking(model_of(name, dict(variants(name))[variant] if variant else config_of(name)))
    inputs = picture_prompt(name, model, "pictures")
    return Talk(name, model, inputs, placeholder(model.config), apart)


def speaking(model: nn.Module) -> nn.Module:
    """The same model where it says words alone: random ones say placeholders, which a later prompt cannot show."""
    model = copy.copy(model)
    model.generation_config = copy.deepcopy(model.generation_config)
    model.generation_config.suppress_tokens = list(placeholders_of(model.config))
    return model


def second(ids: list[int], token: int, model: nn.Module) -> int:
    """Where what belongs to the second picture begins."""
    starts = [n for n, one in enumerate(ids) if one == token and ids[n - 1] != token]
    before = getattr(model.config, "vision_start_token_id", None)
    return starts[1] - (ids[starts[1] - 1] == before)


def first(pixels: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of the first of two pictures."""
    if "image_grid_thw" in pixels:
        grid = pixels["image_grid_thw"][:1]
        return pixels | {"image_grid_thw": grid, "pixel_values": pixels["pixel_values"][: int(grid.prod())]}
    axis = 0 if pixels["pixel_values"].shape[0] > 1 else 1
    return {name: pixel.narrow(axis, 0, pixel.shape[axis] // 2) for name, pixel in pixels.items()}


@contextmanager
def counted(model: nn.Module) -> Iterator[dict[str, int]]:
    """Counts tokens that pass the decoder, and calls of the vision tower."""
    seen = {"tokens": 0, "pictures": 0}
    paths = [path.split(".") for path, _ in model.named_modules()]
    towers = [".".join(path) for path in paths if path[-1] in TOWERS and not set(path[:-1]) & set(TOWERS)]

    def read(module: nn.Module, args: tuple, kwargs: dict) -> None:
        ids, embeds = kwargs.get("input_ids", args[0] if args else None), kwargs.get("inputs_embeds")
        seen["tokens"] += (ids if embeds is None else embeds).shape[1]

    def look(*args: object) -> None:
        seen["pictures"] += 1

    hooks = [take_apart(model).decoder.register_forward_pre_hook(read, with_kwargs=True)]
    hooks += [model.get_submodule(path).register_forward_hook(look) for path in towers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
