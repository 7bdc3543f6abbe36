"""Questions about pictures as model inputs, and the held-out ones the benches ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count as counting
from typing import Any

from PIL.Image import Image

from mmspec.zoo.world.captions import REQUESTS, REVERSED_REQUESTS
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, Scene, sample_scene

# scenes the quality figures are not taken from
_FIRST = EVAL_SEEDS[0] + 1_000_000
_LONG = 5
_PICTURES_EVERY = 10
_REQUESTS = (*REQUESTS, *REVERSED_REQUESTS[:1])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request about some pictures."""

    text: str
    images: tuple[Image, ...]


def held_out(count: int, seed: int = 0) -> list[Prompt]:
    """`count` requests with long answers about scenes that no training saw; a pure function of its arguments.

    Scenes hold at least five objects, so that the answer is a long one. Every tenth request shows three pictures and
    asks about one of them.
    """
    if count < 1:
        raise ValueError(f"--prompts: expected at least 1, got {count}, ask for more")
    check_seed(seed)
    scenes = _long_scenes(_FIRST + seed * 100_000)
    return [_prompt(index, scenes) for index in range(count)]


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed without scenes of its own."""
    if not 0 <= seed < 10_000:
        raise ValueError(f"--seed: expected 0 to 9999, got {seed}, pick another")


def _long_scenes(first: int):
    return (scene for scene in map(sample_scene, counting(first)) if len(scene.things) >= _LONG)


def _prompt(index: int, scenes) -> Prompt:
    if index % _PICTURES_EVERY == _PICTURES_EVERY - 1:
        which = ("first", "second", "third")[index // _PICTURES_EVERY % 3]
        return Prompt(f"Describe the {which} picture.", tuple(render(next(scenes)) for _ in range(3)))
    return Prompt(_REQUESTS[index % len(_REQUESTS)], (render(next(scenes)),))


def demo_scenes(count: int = 3) -> list[Scene]:
    """The held-out scenes of the demo."""
    scenes = _long_scenes(_FIRST - 100_000)
    return [next(scenes) for _ in range(count)]


def encode(processor: Any, prompts: Sequence[Prompt]) -> dict:
    """Model inputs of a batch of prompts, padded on the left, through the processor's own chat template.

    Raises ValueError for a text that holds the processor's image placeholder.
    """
    mark = getattr(processor, "image_token", None)
    for prompt in prompts:
        if mark and mark in prompt.text:
            raise ValueError(f"--prompt: expected text only, got the placeholder {mark!r} in it, remove it")
    texts = [_chat(processor, mark, prompt) for prompt in prompts]
    images = [list(prompt.images) for prompt in prompts]
    padding = {"padding": True, "padding_side": "left"} if len(prompts) > 1 else {}
    inputs = processor(images=images if any(images) else None, text=texts, return_tensors="pt", **padding)
    return dict(inputs)


def _chat(processor: Any, mark: str | None, prompt: Prompt) -> str:
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"} for _ in prompt.images] + [{"type": "text", "text": prompt.text}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{mark or ''}\n" * len(prompt.images) + prompt.text
