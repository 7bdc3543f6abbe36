"""A small T5 encoder for prompts, trained to hold all that a prompt says in the state of every token.

LlamaGen's image tokens attend evenly to all caption tokens (their rotary rows are zero): a small model that has to work out
itself which color belongs to which shape mixes them up for thousands of steps.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.imagegen.llamagen.conditioning import CaptionMLP

from ..training.loop import Plan, train
from ..world.pictures import CLASSES, PLACES, Picture, sample_picture
from ..world.prompts import LONGEST, prompt_of, prompt_tokenizer
from ..world.words import BACKDROPS, COLORS, SHAPES, TONES

FIRST_SEED = 1 << 28
WIDTH = 128
IGNORE = -100


def new_encoder(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> T5EncoderModel:
    """Three layers of 128, freshly initialised."""
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=WIDTH, d_kv=32, num_heads=4, d_ff=256, num_layers=3, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        relative_attention_num_buckets=32, relative_attention_max_distance=64, is_encoder_decoder=False,
    )  # fmt: skip
    encoder = T5EncoderModel(config)
    # words belong to their neighbours: three heads start out looking one and two back, and one ahead
    with torch.no_grad():
        bias = encoder.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        for head, bucket in enumerate((1, 2, config.relative_attention_num_buckets // 2 + 1)):
            bias[bucket, head] = 4.0
    return encoder


# of a picture: which classes it shows, then by place, the last index for nothing there
HEADS = {"pairs": CLASSES, "color": 9 * (len(COLORS) + 1), "shape": 9 * (len(SHAPES) + 1), "size": 9 * 3,
         "tone": len(TONES), "backdrop": len(BACKDROPS)}  # fmt: skip
_OWN = {"color": len(COLORS), "place": len(PLACES), "size": 2}  # what the word of a shape must know about its object


class FactReader(nn.Module):
    """The encoder with heads that read a picture's facts from single tokens, and each object's from its shape's.

    projection: what the heads read through, float [..., 128] -> [..., dim]; a transformer of this width can start from it.
    """

    def __init__(self, encoder: T5EncoderModel, dim: int):
        super().__init__()
        self.encoder, self.projection = encoder, CaptionMLP(WIDTH, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU())
        self.own = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in _OWN.items()})
        self.heads = nn.ModuleDict({name: nn.Linear(2 * dim, size) for name, size in HEADS.items()})

    def forward(self, ids: Tensor, mask: Tensor, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """ids, mask: int64 [B, S] -> logits per head of the picture, read from a token of each row that `seed` draws,
        [B, size], and per head of each token [B, S, size]."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        place = torch.multinomial(mask.float(), 1, generator=torch.Generator().manual_seed(seed))[:, 0]
        seen = self.projection(states[torch.arange(len(ids)), place])
        hidden = self.mix(F.rms_norm(seen, seen.shape[-1:]))
        return {name: head(hidden) for name, head in self.heads.items()}, {k: h(states) for k, h in self.own.items()}


def facts(pictures: list[Picture]) -> dict[str, Tensor]:
    """What is on each picture: "pairs" float [B, 64]; color, shape, size int64 [B, 9] by place, the last index for
    nothing there; tone and backdrop int64 [B]."""
    count = len(pictures)
    found = {"pairs": torch.zeros(count, CLASSES), "color": torch.full((count, 9), len(COLORS)),
             "shape": torch.full((count, 9), len(SHAPES)), "size": torch.full((count, 9), 2)}  # fmt: skip
    for row, picture in enumerate(pictures):
        for item in picture.items:
            place = PLACES.index(item.place)
            found["pairs"][row, item.label] = 1
            found["color"][row, place] = tuple(COLORS).index(item.color)
            found["shape"][row, place] = SHAPES.index(item.shape)
            found["size"][row, place] = ("small", "large").index(item.size)
    found["tone"] = torch.tensor([tuple(TONES).index(p.background.tone) for p in pictures])
    found["backdrop"] = torch.tensor([BACKDROPS.index(p.background.texture) for p in pictures])
    return found


def own_facts(ids: Tensor, pictures: list[Picture], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """int64 [B, S] per fact: that of the object a shape's word names, IGNORE at all other tokens."""
    shapes = dict(zip(tokenizer.convert_tokens_to_ids(list(SHAPES)), SHAPES, strict=True))
    colors = dict(zip(tokenizer.convert_tokens_to_ids(list(COLORS)), COLORS, strict=True))
    found = {name: torch.full_like(ids, IGNORE) for name in _OWN}
    for row, (line, picture) in enumerate(zip(ids.tolist(), pictures, strict=True)):
        items = {(item.shape, item.color): item for item in picture.items}
        for at, (before, word) in enumerate(zip(line, line[1:], strict=False), 1):
            item = items.get((shapes.get(word), colors.get(before)))
            if item is not None:
                found["color"][row, at] = tuple(COLORS).index(item.color)
                found["place"][row, at] = PLACES.index(item.place)
                found["size"][row, at] = ("small", "large").index(item.size)
    return found


def fact_loss(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Sum of the heads' cross-entropies, and how often both objects of a picture are read right."""
    loss = F.binary_cross_entropy_with_logits(logits["pairs"], wanted["pairs"]) * CLASSES
    for name in ("color", "shape", "size"):
        target = wanted[name]
        loss = loss + F.cross_entropy(logits[name].view(*target.shape, -1).flatten(0, 1), target.flatten())
    for name in ("tone", "backdrop"):
        loss = loss + 0.3 * F.cross_entropy(logits[name], wanted[name])
    right = ((logits["pairs"] > 0) == (wanted["pairs"] > 0)).all(-1)
    return loss, {"pairs": float(right.float().mean())}


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
        for name, target in own_facts(rows["input_ids"], pictures, tokenizer).items():
            loss = loss + F.cross_entropy(own[name].flatten(0, 1), target.flatten(), ignore_index=IGNORE)
        return loss, notes

    train(reader, loss_of, Plan(steps=steps, lr=2e-3, warmup=50, weight_decay=0.01), folder, "caption encoder", resume)
    return reader.eval()
