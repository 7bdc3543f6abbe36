"""Training of the zoo's caption encoder of moving scenes, on prompts that are never rendered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from transformers import T5EncoderModel

from ...architectures.caption_encoder import FactReader, new_encoder
from ...world.moving import sample_moving
from ...world.moving_prompts import LONGEST, moving_prompt, moving_tokenizer
from ..fact_reading import FIRST_SEED, Lesson, Read, token_loss, train_reader
from .moving_facts import HEADS, OWN_HEADS, moving_fact_loss, moving_facts, moving_token_facts


def train_moving_encoder(
    folder: Path, dim: int, frames: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """dim: of the transformer that will read the captions.   frames: of whose bounces they tell."""
    tokenizer = moving_tokenizer()
    reader = FactReader(new_encoder(tokenizer), dim, HEADS, OWN_HEADS)
    return train_reader(reader, tokenizer, LONGEST, _lesson(frames, batch), folder, steps, resume)


def train_moving_projection(
    encoder: T5EncoderModel, folder: Path, dim: int, frames: int, steps: int = 400, batch: int = 64, resume: bool = True
) -> FactReader:
    """`train_moving_encoder` for an encoder that stays as it is: only what a transformer of another width reads it through is
    trained."""
    reader = FactReader(encoder.requires_grad_(False), dim, HEADS, OWN_HEADS)
    return train_reader(reader, moving_tokenizer(), LONGEST, _lesson(frames, batch), folder, steps, resume)


def _lesson(frames: int, batch: int) -> Callable[[int], Lesson]:
    tokenizer = moving_tokenizer()

    def lesson(step: int) -> Lesson:
        scenes = [sample_moving(FIRST_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> Read:
            loss, notes = moving_fact_loss(whole, moving_facts(scenes))
            return loss + token_loss(own, moving_token_facts(ids, scenes, tokenizer)), notes

        return [moving_prompt(scene, step, frames) for scene in scenes], judge

    return lesson
