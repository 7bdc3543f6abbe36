"""Requests by category, as SPEED-Bench groups them, and the accept length by depth.

The requests of a category are picked to be unlike each other, so that few of them show much. Random words on noise are
the negative control: a gain there says nothing about a gain on text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

from mmspec.evaluate.vlm.requests import VlmTask, albums, documents, held_out, questions
from mmspec.run.timed_run import TimedRun
from mmspec.run.vlm_requests import VlmPrompt
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE

POOL = 4  # requests for each that is picked
_CONTROL = "random words"
_GRID, _SIDE = 8, 96  # pixels of a picture's thumbnail, and of a picture of noise
_WORDS = 24


def spread_out(features: Tensor, count: int) -> list[int]:
    """Pick rows, float [n, F] of unit length, that are unlike each other, and return their indices in this order. The
    first is the least similar to all rows by their products, each other row to the rows before it."""
    similar = features @ features.T
    picked = [int(similar.mean(-1).argmin())]
    nearest = similar[picked[0]].clone()
    while len(picked) < min(count, len(features)):
        nearest[picked] = torch.inf
        picked.append(int(nearest.argmin()))
        nearest = nearest.maximum(similar[picked[-1]])
    return picked


def features_of(prompts: Sequence[VlmPrompt]) -> Tensor:
    """Return the words and the thumbnails of prompts, float32 [n, F] of unit length; both parts weigh the same."""
    counts = [Counter(prompt.text.lower().split()) for prompt in prompts]
    words = {word: place for place, word in enumerate(sorted({word for count in counts for word in count}))}
    texts = torch.tensor([[float(count[word]) for word in words] for count in counts])
    parts = [texts]
    if all(prompt.images for prompt in prompts):
        small = [prompt.images[0].convert("RGB").resize((_GRID, _GRID)) for prompt in prompts]
        pixels = torch.stack([pil_to_tensor(picture).flatten() for picture in small]).float()
        parts.append(pixels - pixels.mean(0))
    unit = [torch.nn.functional.normalize(part, dim=-1) for part in parts]
    return torch.cat(unit, -1) / len(unit) ** 0.5


def picked(
    make: Callable[[int, int], Sequence[VlmPrompt]], keep: Callable[[VlmPrompt], bool], count: int, seed: int = 0
) -> list[VlmPrompt]:
    """Return `count` unlike requests of the pool of `make`, a function of (count, seed), that `keep` accepts."""
    size = POOL * count
    while len(pool := [prompt for prompt in make(size, seed) if keep(prompt)]) < POOL * count:
        size *= 2
    pool = pool[: POOL * count]
    return [pool[index] for index in spread_out(features_of(pool), count)]


def random_words(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return `count` requests of random words of other requests, each with a picture of noise."""
    generator = torch.Generator().manual_seed(seed)
    texts = [prompt.text for prompt in (*questions(64, seed), *held_out(16, seed))] + list(TRANSCRIBE)
    known = sorted(set(chain.from_iterable(text.lower().split() for text in texts)))
    requests = []
    for _ in range(count):
        pixels = torch.randint(256, (_SIDE, _SIDE, 3), generator=generator, dtype=torch.uint8)
        order = torch.randint(len(known), (_WORDS,), generator=generator).tolist()
        requests.append(VlmPrompt(" ".join(known[place] for place in order), (Image.fromarray(pixels.numpy()),)))
    return requests


def _single(prompt: VlmPrompt) -> bool:
    return len(prompt.images) == 1


def _counts(prompt: VlmPrompt) -> bool:
    return prompt.text.lower().startswith("how many")


def _asks_else(prompt: VlmPrompt) -> bool:
    return not _counts(prompt)


CATEGORIES = (
    VlmTask("caption", partial(picked, held_out, _single), 128),
    VlmTask("question", partial(picked, questions, _asks_else), 48),
    VlmTask("counting", partial(picked, questions, _counts), 48),
    VlmTask("transcription", partial(picked, documents, _single), 144),
    VlmTask("several pictures", partial(picked, partial(albums, pictures=3), bool), 128, pictures=3),
    VlmTask(_CONTROL, random_words, 64, natural=False),
)


def accept_by_depth(runs: Sequence[TimedRun]) -> list[float] | None:
    """Return the share of rounds that accept at least 1, 2, ... values, None where no rounds were recorded. With the
    target's own value they sum to the mean. The prefill and rounds without a row do not count."""
    counts = [count for run in runs for accepted in run.accepted[1:] for count in accepted if count is not None]
    if not counts:
        return None
    return [round(sum(count >= depth for count in counts) / len(counts), 4) for depth in range(1, max(counts) + 1)]
