"""Training of the zoo's caption encoder, on prompts of pictures that are never rendered."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from ..architectures.caption_encoder import FactReader, new_encoder
from ..world.pictures import sample_picture
from ..world.prompts import LONGEST, prompt_of, prompt_tokenizer
from .loop import Plan, train
from .picture_facts import IGNORE, fact_loss, facts, token_facts

FIRST_SEED = 1 << 28


def train_encoder(folder: Path, dim: int, steps: int = 3000, batch: int = 64, resume: bool = True) -> FactReader:
    """Trains on prompts of pictures that are never rendered.   dim: of the transformer that will read the captions."""
    tokenizer = prompt_tokenizer()
    reader = FactReader(new_encoder(tokenizer), dim)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        pictures = [sample_picture(FIRST_SEED + step * batch + i) for i in range(batch)]
        texts = [prompt_of(picture, step) for picture in pictures]
        rows = tokenizer(texts, padding="max_length", max_length=LONGEST, truncation=True, return_tensors="pt")
        whole, own = reader(rows["input_ids"], rows["attention_mask"], step)
        loss, notes = fact_loss(whole, facts(pictures))
        for name, target in token_facts(rows["input_ids"], pictures, tokenizer).items():
            loss = loss + F.cross_entropy(own[name].flatten(0, 1), target.flatten(), ignore_index=IGNORE)
        return loss, notes

    train(reader, loss_of, Plan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01), folder, "caption encoder", resume)
    return reader.eval()
