"""Training rows of the hybrid VLM: whole conversations, since what a recurrent layer has read no mask takes back."""

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
DENSE = {"brief": 0.5, "asked": 0.5}  # of the first rows: short answers, most of whose words a picture decides


@dataclass(frozen=True, slots=True)
class HybridRow:
    """Pictures uint8 [96, 96, 3], shown with the first turn, and the turns of the conversation."""

    pictures: tuple[np.ndarray, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class HybridBatch:
    """Rows padded behind their end. inputs: of the model's forward.   supervised: bool [B, S], tokens of answers."""

    inputs: dict[str, Tensor]
    supervised: Tensor


def hybrid_row(seed: int, shares: Mapping[str, float] = SHARES) -> HybridRow:
    """The row of a seed: a scene and turns about it, a document, several scenes, or an invented one; of a scene "brief" lists
    the objects alone, "asked" answers three questions."""
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
    asked = [question(scene, index).turn for index in range(3)]
    brief = brief_turn(rng, scene, seed)
    if kind != "scene":
        return HybridRow((render_array(scene),), (brief,) if kind == "brief" else tuple(asked))
    style = rng.random()
    if style < 0.7:
        told = full_turn(rng, scene, seed)
    elif style < 0.82:
        told = reversed_turn(rng, scene, seed)
    else:
        told = brief
    # questions behind a caption are answered from it, so they come first as often
    turns = [*asked, told] if rng.random() < 0.5 else [told, *asked]
    return HybridRow((render_array(scene),), tuple(turns))


def patches(pictures: np.ndarray) -> Tensor:
    """Pictures uint8 [B, 96, 96, 3] as the processor lays them out, float32 [B * 144, 384]."""
    # tokens of the grid, patches of a token, values of a patch; a picture is two equal frames
    layout = "b c (row i h) (col j w) -> (b row col i j) (c frame h w)"
    return repeat(to_pixels(pictures), layout, i=MERGE, j=MERGE, h=PATCH, w=PATCH, frame=2)


def grids(count: int) -> Tensor:
    """int64 [count, 3], the patches of so many pictures by frame, row and column."""
    return torch.tensor([[1, SIDE * MERGE, SIDE * MERGE]]).repeat(count, 1)


class HybridEncoder:
    """Turns rows into padded tensors with the hybrid VLM's tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.image = tokenizer.convert_tokens_to_ids(IMAGE)
        self.digits = torch.tensor(tokenizer.convert_tokens_to_ids(list(DIGITS)))  # of numbers, spelled one by one

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
        for number, (asked, answer) in enumerate(row.turns):
            prompt = chat_prompt(asked, len(row.pictures) if number == 0 else 0)
            prompt = prompt.replace(IMAGE, IMAGE * SIDE * SIDE)
            # the first turn's start is the row's; the end of an answer is what ends it
            for text, learned in ((prompt if number == 0 else f"\n{prompt}", False), (f"{answer}{END}", True)):
                piece = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                ids += piece
                supervised += [learned] * len(piece)
        return ids, supervised
