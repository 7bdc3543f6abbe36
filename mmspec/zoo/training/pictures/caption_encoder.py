"""Training of the zoo's caption encoder of pictures, on prompts that are never rendered."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ...architectures.caption_encoder import FactReader, new_encoder
from ...world.pictures import sample_picture
from ...world.prompts import LONGEST, prompt_of, prompt_tokenizer
from ..fact_reading import FIRST_SEED, Lesson, Read, token_loss, train_reader
from .picture_facts import fact_loss, facts, token_facts


def train_encoder(folder: Path, dim: int, steps: int = 3000, batch: int = 64, resume: bool = True) -> FactReader:
    """Trains on prompts of pictures that are never rendered.   dim: of the transformer that will read the captions."""
    tokenizer = prompt_tokenizer()

    def lesson(step: int) -> Lesson:
        pictures = [sample_picture(FIRST_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> Read:
            loss, notes = fact_loss(whole, facts(pictures))
            return loss + token_loss(own, token_facts(ids, pictures, tokenizer)), notes

        return [prompt_of(picture, step) for picture in pictures], judge

    return train_reader(FactReader(new_encoder(tokenizer), dim), tokenizer, LONGEST, lesson, folder, steps, resume)
