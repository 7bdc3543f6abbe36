"""A request for videos: its settings, its prompts from block to block, and the state of each video."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.io.validation import whole
from mmspec.video.decoding.output import BlockRecord
from mmspec.video.generation import KeyedBlockNoise
from mmspec.video.model import BlockVideoModel, BlockVideoState
from mmspec.video.prompt_encoder import PromptReader
from mmspec.video.vae import StreamingVAE, VAEState

Prompt = str | Tensor  # a text, or its states from a text encoder, float [1, L, d]
# called with (row, block, frames uint8 [N, H, W, 3] or None with `pixels=False`) after each finished block
Listener = Callable[[int, int, np.ndarray | None], None]


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """The settings of one call, which a decoding prepares for the loop."""

    prompts: Sequence[Mapping[int, Prompt]]  # per row, by the block from which each applies, 0 included
    reward_prompts: Sequence[Mapping[int, str]] | None  # likewise
    keys: Keys
    size: tuple[int, int]  # rows and columns of a latent frame
    blocks: int
    vae: StreamingVAE
    read: PromptReader
    pixels: bool = True  # whether frames are stored; without them only a reward decodes
    listener: Listener | None = None  # called once a row's block is committed

    @property
    def anchors(self) -> frozenset[int]:
        return frozenset(block for row in self.prompts for block in row)

    def open(self, model: BlockVideoModel, read: PromptReader) -> list[BlockVideoState]:
        """Return a model's state for every row: each is a request of its own, so rows decide independently."""
        states = []
        for row, prompts in enumerate(self.prompts):
            noise = KeyedBlockNoise(Keys(self.keys.seeds[row : row + 1]))
            state = model.open(read(prompts[0]), noise, self.size)
            for block in sorted(prompts.keys() - {0}):
                state.switch(read(prompts[block]), block)
            states.append(state)
        return states

    def text(self, row: int, block: int) -> str:
        texts = self.reward_prompts[row]
        return texts[max(first for first in texts if first <= block)]


Prompts = str | Sequence[str] | Tensor


def prompt_rows(prompts: Prompts, rows: int | None = None, name: str = "prompts") -> list[Prompt]:
    """Return one prompt per row of a text, texts, or states float [B, L, d]; a single text is repeated to `rows`."""
    if isinstance(prompts, str):
        return [prompts] * (rows or 1)
    each: list[Prompt] = []
    if isinstance(prompts, Tensor) and prompts.dim() == 3:
        each = [prompts[row : row + 1] for row in range(len(prompts))]
    elif isinstance(prompts, Sequence) and all(isinstance(prompt, str) for prompt in prompts):
        each = list(prompts)
    if not each or rows is not None and len(each) != rows:
        wanted = "texts or float [B, L, d]" if rows is None else f"one text or {rows}"
        got = tuple(prompts.shape) if isinstance(prompts, Tensor) else f"{prompts!r:.60}"
        raise ValueError(f"{name}: expected {wanted}, got {got}; give a prompt per video")
    return each


def prompts_by_block(
    first: Sequence[Prompt], later: Mapping[int, Prompts] | None, blocks: int, name: str
) -> list[dict[int, Prompt]]:
    timeline = [{0: prompt} for prompt in first]
    if not isinstance(later, Mapping | None):
        raise ValueError(
            f"{name}: expected a dict from a prompt's first block to the prompt, got {later!r:.60}; pass a dict"
        )
    for block, prompts in sorted((whole(name, block), prompts) for block, prompts in (later or {}).items()):
        if not 0 <= block < blocks:
            raise ValueError(f"{name}: expected blocks 0 to {blocks - 1}, got {block}; name a block of the video")
        for row, prompt in zip(timeline, prompt_rows(prompts, len(timeline), name), strict=True):
            row[block] = prompt
    return timeline


def reward_prompts(
    shown: Sequence[Mapping[int, Prompt]], given: Prompts | Mapping[int, Prompts] | None, blocks: int
) -> list[dict[int, str]] | None:
    """Return, per row, the texts by block that replace the prompts for scoring; None where a row has no text."""
    more = dict(given) if isinstance(given, Mapping) else {} if given is None else {0: given}
    own = prompts_by_block([rows[0] for rows in shown], more, blocks, "reward_prompt")
    texts = [{**rows, **others} for rows, others in zip(shown, own, strict=True)]
    return texts if all(isinstance(text, str) for rows in texts for text in rows.values()) else None


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    frames: Tensor  # uint8 [N, 3, H, W]
    after: VAEState | None  # the state after the block; None where the next starts anew


@dataclass(slots=True)
class VideoRowState:
    """The committed blocks of a row and, until the round ends, the candidates for the next block."""

    state: BlockVideoState
    committed: list[Tensor] = field(default_factory=list)  # per block, latents [1, C, F, h, w]
    frames: list[Tensor] = field(default_factory=list)  # per block, uint8 [N, 3, H, W] on the host
    vae_state: VAEState | None = None  # after the committed blocks; drafts do not change it
    slots: dict[int, Tensor] = field(default_factory=dict)  # latents of the candidates by handle
    decoded: dict[int, DecodedBlock] = field(default_factory=dict)
    anchor: Tensor | None = None  # frame scores of the block that began the prompt
    run: int = 0  # accepted drafts since the target's last block
    records: list[BlockRecord] = field(default_factory=list)
    record: BlockRecord = field(default_factory=BlockRecord)  # of the next block

    @property
    def target_blocks(self) -> int:
        return sum(not record.kept for record in self.records)

    def put(self, latents: Tensor, drafted: bool) -> int:
        handle = 2 * len(self.committed) + drafted
        self.slots[handle] = latents
        return handle

    def commit(self, handle: int, kept: bool) -> None:
        self.record.kept = kept
        self.run = self.run + 1 if kept else 0
        self.committed.append(self.slots[handle])
        if handle in self.decoded:
            self.frames.append(self.decoded[handle].frames)
            self.vae_state = self.decoded[handle].after
        self.records.append(self.record)
        self.clear()

    def clear(self) -> None:
        self.slots, self.decoded, self.record = {}, {}, BlockRecord()
