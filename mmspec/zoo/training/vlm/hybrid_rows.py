"""Training rows of the hybrid VLM: whole conversations, since no mask can hide earlier tokens from a recurrent layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from einops import repeat
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.zoo.architectures.hybrid import END, IMAGE, MERGE, PATCH, SIDE, chat_prompt
from mmspec.zoo.world.captions import Turn, brief_turn, full_turn, imagined_turn, reversed_turn
from mmspec.zoo.world.documents import document_turn, page_array, sample_document
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.questions import many_turn, question
from mmspec.zoo.world.render import render_array
from mmspec.zoo.world.scene import DIGITS, sample_scene

SHARES = {"scene": 0.48, "document": 0.36, "many": 0.1, "text": 0.06}  # of the rows
DENSE = {"brief": 0.5, "asked": 0.5}  # of the first rows: short answers whose words mostly depend on the picture


@dataclass(frozen=True, slots=True)
class HybridRow:
    pictures: tuple[np.ndarray, ...]  # uint8 [96, 96, 3] each, shown with the first turn
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class HybridBatch:
    """Rows padded on the right."""

    inputs: dict[str, Tensor]  # of the model's forward pass
    supervised: Tensor  # bool [B, S], tokens of answers


def hybrid_row(seed: int, shares: Mapping[str, float] = SHARES) -> HybridRow:
    """Return the row of a seed, by the probability of each kind: "scene" (captions and questions), "brief" (a list of
    objects), "asked" (three questions), "document", "many" (several scenes) and "text" (an invented scene)."""
    rng = np.random.default_rng((seed, 11))
    kind = str(rng.choice(list(shares), p=list(shares.values())))
    if kind == "document":
        document = sample_document(seed)
        return HybridRow((page_array(document),), (document_turn(rng, document),))
    if kind == "many":
        scenes = tuple(sample_scene(seed * 3 + index) for index in range(2 + seed % 2))
        return HybridRow(tuple(map(render_array, scenes)), (many_turn(scenes, seed), many_turn(scenes, seed + 1)))
    scene = sample_scene(seed)
    if kind == "text":
        return HybridRow((), (imagined_turn(rng, scene, seed),))
    questions = [question(scene, index).turn for index in range(3)]
    brief = brief_turn(rng, scene, seed)
    if kind != "scene":
        return HybridRow((render_array(scene),), (brief,) if kind == "brief" else tuple(questions))
    style = rng.random()
    if style < 0.7:
        description = full_turn(rng, scene, seed)
    elif style < 0.82:
        description = reversed_turn(rng, scene, seed)
    else:
        description = brief
    # after a caption, questions could be answered from its text, so half of the rows begin with questions
    turns = [*questions, description] if rng.random() < 0.5 else [description, *questions]
    return HybridRow((render_array(scene),), tuple(turns))


def patches(pictures: np.ndarray) -> Tensor:
    """Return pictures uint8 [B, 96, 96, 3] in the layout of the processor, float32 [B * 144, 384]."""
    # tokens of the grid, patches of a token, values of a patch; a picture has two equal frames
    layout = "b c (row i h) (col j w) -> (b row col i j) (c frame h w)"
    return repeat(to_pixels(pictures), layout, i=MERGE, j=MERGE, h=PATCH, w=PATCH, frame=2)


def grids(count: int) -> Tensor:
    """Return int64 [count, 3]: the patches of each picture by frame, row and column."""
    return torch.tensor([[1, SIDE * MERGE, SIDE * MERGE]]).repeat(count, 1)


class HybridEncoder:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.image = tokenizer.convert_tokens_to_ids(IMAGE)
        self.digits = torch.tensor(
            tokenizer.convert_tokens_to_ids(list(DIGITS))
        )  # numbers are spelled in single digits

    def __call__(self, rows: list[HybridRow]) -> HybridBatch:
        encoded = [self._one(row) for row in rows]
        size = -(-max(len(ids) for ids, _ in encoded) // 16) * 16
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([ids + [pad] * (size - len(ids)) for ids, _ in encoded])
        supervised = torch.tensor([answer + [False] * (size - len(answer)) for _, answer in encoded])
        inputs = {"input_ids": ids, "mm_token_type_ids": (ids == self.image).int()}
        pictures = [picture for row in rows for picture in row.pictures]
        if pictures:
            inputs |= {"pixel_values": patches(np.stack(pictures)), "image_grid_thw": grids(len(pictures))}
        return HybridBatch(inputs, supervised)

    def _one(self, row: HybridRow) -> tuple[list[int], list[bool]]:
        ids, supervised = [], []
        for number, (request, answer) in enumerate(row.turns):
            prompt = chat_prompt(request, len(row.pictures) if number == 0 else 0)
            prompt = prompt.replace(IMAGE, IMAGE * SIDE * SIDE)
            # later turns begin with a line break; the end token of an answer is supervised
            for text, learned in ((prompt if number == 0 else f"\n{prompt}", False), (f"{answer}{END}", True)):
                piece = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                ids += piece
                supervised += [learned] * len(piece)
        return ids, supervised
