"""Training rows of the captioner: several conversations about a picture, with a shared picture prefix.

A row is `USER: <image>\\n` followed by branches that cannot attend to one another (an ancestor mask and branch-local
positions). An encoded picture thus serves several captions, and no answer can be copied from another branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.zoo.architectures.llava import SIDE
from mmspec.zoo.world.captions import Turn, brief_turn, full_turn, imagined_turn, reversed_turn
from mmspec.zoo.world.pixels import to_pixels
from mmspec.zoo.world.questions import many_turn, question
from mmspec.zoo.world.render import render_array
from mmspec.zoo.world.scene import COLORS, DIGITS, SHAPES, Scene, sample_scene

IMAGE_TOKENS = SIDE * SIDE


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The strings around the turns of a conversation."""

    opening: str  # before the first turn without pictures
    pictured: str  # before the pictures of the first turn
    picture: str  # in the place of a picture
    unpictured: str  # before the user's first text where no picture precedes it
    later: str  # before the user's later texts
    reply: str  # after the user's text
    answer: str
    end: str  # after an answer, supervised


ZOO_CHAT = ChatFormat(
    "<s>USER:", "<s>USER: ", "<image>" * IMAGE_TOKENS + "\n", " ", "USER: ", " ASSISTANT:", " ", "</s>"
)


@dataclass(frozen=True, slots=True)
class ConversationRow:
    scenes: tuple[Scene, ...]  # shown before any text
    branches: tuple[tuple[Turn, ...], ...]


@dataclass(frozen=True, slots=True)
class ConversationBatch:
    """Padded rows."""

    ids: Tensor  # int64 [B, S]
    supervised: Tensor  # bool [B, S], tokens of answers
    positions: Tensor  # int64 [B, S]
    visible: Tensor  # bool [B, 1, S, S]
    pixels: Tensor | None  # float32 [P, 3, 96, 96] of all rows in order


def picture_row(seed: int) -> ConversationRow:
    """Return a row of a picture: a caption, four questions, and a third branch that mixes both or reverses the order."""
    rng = np.random.default_rng((seed, 5))
    scene = sample_scene(seed)
    branches = [(full_turn(rng, scene, seed),), tuple(question(scene, index).turn for index in range(4))]
    style = rng.random()
    if style < 0.3:
        branches.append((reversed_turn(rng, scene, seed + 1),))
    elif style < 0.65:
        branches.append((question(scene, 4).turn, full_turn(rng, scene, seed + 2)))
    else:
        branches.append((brief_turn(rng, scene, seed), question(scene, 5).turn, question(scene, 6).turn))
    return ConversationRow((scene,), tuple(branches))


def text_row(seed: int) -> ConversationRow:
    """Return a row without a picture, about an invented scene, so that prompts without images are learnt too."""
    rng = np.random.default_rng((seed, 6))
    scene = sample_scene(seed)
    turn = imagined_turn(rng, scene, seed)
    return ConversationRow((), ((turn, question(scene, 0).turn, question(scene, 1).turn),))


def many_row(seed: int) -> ConversationRow:
    """Return a row of two or three pictures, with branches that ask about one of them by its ordinal."""
    count = 2 + seed % 2
    scenes = tuple(sample_scene(seed * 3 + index) for index in range(count))
    turns = [many_turn(scenes, index) for index in range(6)]
    return ConversationRow(scenes, ((turns[0], turns[1]), (turns[2], turns[3]), (turns[4], turns[5])))


class ConversationEncoder:
    """An encoder of rows to tensors, padded to a length that is a multiple of `multiple`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, chat: ChatFormat = ZOO_CHAT, multiple: int = 16) -> None:
        self.tokenizer, self.chat, self.multiple = tokenizer, chat, multiple
        self.prefixes = {0: self._ids(chat.opening)}
        for count in (1, 2, 3):
            self.prefixes[count] = self._ids(chat.pictured + chat.picture * count)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def __call__(self, rows: list[ConversationRow]) -> ConversationBatch:
        pieces = iter(self._encode_pieces(rows))
        encoded = [self._one(row, pieces) for row in rows]
        size = -(-max(len(ids) for ids, *_ in encoded) // self.multiple) * self.multiple
        fills = (self.tokenizer.pad_token_id, False, 0, -1)
        ids, supervised, positions, branch = (
            torch.tensor([row[part] + [fill] * (size - len(row[part])) for row in encoded])
            for part, fill in enumerate(fills)
        )
        pictures = [render_array(scene) for row in rows for scene in row.scenes]
        return ConversationBatch(
            ids, supervised, positions, branch_mask(branch), to_pixels(np.stack(pictures)) if pictures else None
        )

    def _encode_pieces(self, rows: list[ConversationRow]) -> list[list[int]]:
        texts, chat = [], self.chat
        for row in rows:
            for branch in row.branches:
                for index, (prompt, answer) in enumerate(branch):
                    lead = chat.later if index else "" if row.scenes else chat.unpictured
                    texts += [f"{lead}{prompt}{chat.reply}", f"{chat.answer}{answer}{chat.end}"]
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]

    def _one(
        self, row: ConversationRow, pieces: Iterator[list[int]]
    ) -> tuple[list[int], list[bool], list[int], list[int]]:
        ids = list(self.prefixes[len(row.scenes)])
        start = len(ids)
        supervised, positions, branch = [False] * start, list(range(start)), [0] * start
        for number, turns in enumerate(row.branches, start=1):
            place = start
            for _ in turns:
                for answering in (False, True):
                    piece = next(pieces)
                    ids += piece
                    supervised += [answering] * len(piece)
                    branch += [number] * len(piece)
                    positions += range(place, place + len(piece))
                    place += len(piece)
        return ids, supervised, positions, branch


def word_classes(tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """Return the last tokens of the words for colors, shapes and digits, int64 by class."""
    classes = {"color": COLORS, "shape": SHAPES, "digit": DIGITS}
    return {
        name: torch.tensor([tokenizer(f" {word}", add_special_tokens=False)["input_ids"][-1] for word in words])
        for name, words in classes.items()
    }


def branch_mask(branch: Tensor) -> Tensor:
    """Return bool [B, 1, S, S] of branches int64 [B, S]: a token attends to earlier tokens of the prefix (branch 0) and
    of its own branch. Padding (branch -1) attends to padding only, so that no row of the softmax is empty."""
    size = branch.shape[1]
    own = branch[:, :, None] == branch[:, None, :]
    prefix = (branch == 0)[:, None, :] & (branch >= 0)[:, :, None]
    earlier = torch.ones(size, size, dtype=torch.bool).tril()
    return ((own | prefix) & earlier)[:, None]
