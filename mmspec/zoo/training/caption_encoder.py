"""Training of the zoo's caption encoders, on prompts of pictures and moving scenes that are never rendered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..architectures.caption_encoder import FactReader, new_encoder
from ..world import moving_prompts
from ..world.moving import sample_moving
from ..world.moving_prompts import moving_prompt, moving_tokenizer
from ..world.pictures import sample_picture
from ..world.prompts import LONGEST, prompt_of, prompt_tokenizer
from .loop import Plan, train
from .moving_facts import HEADS, OWN_HEADS, moving_fact_loss, moving_facts, moving_token_facts
from .picture_facts import IGNORE, fact_loss, facts, token_facts

FIRST_SEED = 1 << 28
Read = tuple[Tensor, dict[str, float]]
# of a step: the prompts, and the loss of what heads read from them, given the prompts' ids
Lesson = tuple[list[str], Callable[[Tensor, dict[str, Tensor], dict[str, Tensor]], Read]]


def train_encoder(folder: Path, dim: int, steps: int = 3000, batch: int = 64, resume: bool = True) -> FactReader:
    """Trains on prompts of pictures that are never rendered.   dim: of the transformer that will read the captions."""
    tokenizer = prompt_tokenizer()

    def lesson(step: int) -> Lesson:
        pictures = [sample_picture(FIRST_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> Read:
            loss, notes = fact_loss(whole, facts(pictures))
            return loss + _token_loss(own, token_facts(ids, pictures, tokenizer)), notes

        return [prompt_of(picture, step) for picture in pictures], judge

    return _train(FactReader(new_encoder(tokenizer), dim), tokenizer, LONGEST, lesson, folder, steps, resume)


def train_moving_encoder(
    folder: Path, dim: int, frames: int, steps: int = 3000, batch: int = 64, resume: bool = True
) -> FactReader:
    """The same on prompts of moving scenes; `frames`: of whose bounces they tell."""
    tokenizer = moving_tokenizer()

    def lesson(step: int) -> Lesson:
        scenes = [sample_moving(FIRST_SEED + step * batch + i) for i in range(batch)]

        def judge(ids: Tensor, whole: dict[str, Tensor], own: dict[str, Tensor]) -> Read:
            loss, notes = moving_fact_loss(whole, moving_facts(scenes))
            return loss + _token_loss(own, moving_token_facts(ids, scenes, tokenizer)), notes

        return [moving_prompt(scene, step, frames) for scene in scenes], judge

    reader = FactReader(new_encoder(tokenizer), dim, HEADS, OWN_HEADS)
    return _train(reader, tokenizer, moving_prompts.LONGEST, lesson, folder, steps, resume)


def _token_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
    return sum(F.cross_entropy(logits[name].flatten(0, 1), target.flatten(), ignore_index=IGNORE)
               for name, target in wanted.items())  # fmt: skip


def _train(
    reader: FactReader, tokenizer: PreTrainedTokenizerFast, longest: int, lesson: Callable[[int], Lesson], folder: Path,
    steps: int, resume: bool,
) -> FactReader:  # fmt: skip
    def loss_of(step: int) -> Read:
        texts, judge = lesson(step)
        rows = tokenizer(texts, padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
        return judge(rows["input_ids"], *reader(rows["input_ids"], rows["attention_mask"], step))

    train(reader, loss_of, Plan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01), folder, "caption encoder", resume)
    return reader.eval()
