"""Prompts of classes that read pictures beside the text, or mark their places in it in another way than by one id."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.vlm.classes.prompts import padded
from tests.vlm.classes.shrink import SIDE, WORDS


def words(count: int, rng: torch.Generator) -> list[int]:
    return torch.randint(*WORDS, (count,), generator=rng).tolist()


def beside(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """One picture for each row, in front of its text: GIT, BLIP."""
    rows = [words(5 + 3 * n, rng) for n in range(len(counts))]
    return padded(rows) | {"pixel_values": torch.randn(len(counts), 3, SIDE, SIDE, generator=rng)}


def queried(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """BLIP-2: as many placeholders as queries."""
    config = model.config
    rows = [[config.image_token_index] * config.num_query_tokens + words(5 + 3 * n, rng) for n in range(len(counts))]
    return padded(rows) | {"pixel_values": torch.randn(len(counts), 3, SIDE, SIDE, generator=rng)}


def instructed(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """InstructBLIP: BLIP-2 whose queries read the question, too."""
    inputs = queried(model, counts, rng)
    question = torch.randint(*WORDS, (len(counts), 4), generator=rng)
    return inputs | {"qformer_input_ids": question, "qformer_attention_mask": torch.ones_like(question)}


def marked(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """Kosmos-2: places of the picture's vectors by a mask."""
    count = model.config.latent_query_num
    rows = [[1] + [4] * count + words(5 + 3 * n, rng) for n in range(len(counts))]
    inputs = padded(rows)
    return inputs | {
        "pixel_values": torch.randn(len(counts), 3, SIDE, SIDE, generator=rng),
        "image_embeds_position_mask": (inputs["input_ids"] == 4).long(),
    }


def flattened(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """Kosmos-2.5: Kosmos-2 whose patches carry their row and column."""
    inputs = marked(model, counts, rng)
    inputs.pop("pixel_values")
    size = model.config.vision_config.patch_embed_hidden_size
    patches = torch.randn(len(counts), 4, 2 + size, generator=rng)
    patches[..., :2] = torch.tensor([[1, 1], [1, 2], [2, 1], [2, 2]])
    sides = torch.full((len(counts),), float(SIDE))
    return inputs | {"flattened_patches": patches, "width": sides, "height": sides}


def crossed(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """Mllama: pictures read by layers of cross attention; each token sees those before it."""
    most, image = max(counts), model.config.image_token_index
    rows = [
        sum(([image] + words(2, rng) for _ in range(count)), []) + words(5 + 3 * n, rng)
        for n, count in enumerate(counts)
    ]
    inputs = padded(rows)
    seen = (inputs["input_ids"] == image).cumsum(-1)[..., None] > torch.arange(most)  # [B, L, pictures]
    tiles = model.config.vision_config.max_num_tiles
    exists = torch.arange(most) < torch.tensor(counts)[:, None]
    return inputs | {
        "pixel_values": torch.randn(len(counts), most, tiles, 3, SIDE, SIDE, generator=rng),
        "aspect_ratio_ids": exists.long(),
        "aspect_ratio_mask": (torch.arange(tiles) < 1).long().expand(len(counts), most, tiles),
        "cross_attention_mask": torch.stack([seen.long(), *[torch.zeros_like(seen).long()] * (tiles - 1)], -1),
    }


def gated(model: nn.Module, counts: tuple[int, ...], rng: torch.Generator) -> dict[str, Tensor]:
    """Idefics: pictures read by gated layers of cross attention; each token sees those before it."""
    most = max(counts)
    rows = [words(5 + 3 * n + count, rng) for n, count in enumerate(counts)]
    inputs = padded(rows)
    place = inputs["attention_mask"].cumsum(-1)  # one picture before each of the first words
    seen = (place[..., None] > torch.arange(most)) & (torch.arange(most) < torch.tensor(counts)[:, None, None])
    return inputs | {
        "pixel_values": torch.randn(len(counts), most, 3, SIDE, SIDE, generator=rng),
        "image_attention_mask": seen.long(),
    }


ROWS = {
    "BlipForConditionalGeneration": beside,
    "Blip2ForConditionalGeneration": queried,
    "GitForCausalLM": beside,
    "IdeficsForVisionText2Text": gated,
    "InstructBlipForConditionalGeneration": instructed,
    "Kosmos2ForConditionalGeneration": marked,
    "Kosmos2_5ForConditionalGeneration": flattened,
    "MllamaForConditionalGeneration": crossed,
}
ONE_EACH = (beside, queried, instructed, marked, flattened)  # classes that read one picture for each row
