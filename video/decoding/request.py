"""A request for videos: its settings, its prompts from block to block, and the state of each video."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mmspec.core.keys import Keys
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
    """The settings of one call, which a decoding prepares for the loop.

    Args:
        prompts: Per row, the prompts by the block from which each applies; block 0 always has a prompt.
        reward_prompts: Per row, the texts that blocks are scored by, in the same form; None where a row has no text.
        keys: The random keys of the rows.
        size: Rows and columns of a latent frame.
        blocks: The number of blocks of every video.
        vae: The autoencoder that decodes them.
        read: The reader that encodes prompts for the target.
        pixels: Whether frames are stored; without them a block is decoded only for a reward.
        listener: Called for every row's block once it is committed.
    """

    prompts: Sequence[Mapping[int, Prompt]]
    reward_prompts: Sequence[Mapping[int, str]] | None
    keys: Keys
    size: tuple[int, int]
    blocks: int
    vae: StreamingVAE
    read: PromptReader
    pixels: bool = True
    listener: Listener | None = None

    @property
    def anchors(self) -> frozenset[int]:
        """The blocks at which a prompt begins."""
        return frozenset(block for row in self.prompts for block in row)

    def open(self, model: BlockVideoModel, read: PromptReader) -> list[BlockVideoState]:
        """Return a model's state for every row.

        Each row is a request of its own, so rows decide independently and no row depends on another.

        Raises:
            ValueError: The model does not fit the request.
        """
        states = []
        for row, prompts in enumerate(self.prompts):
            noise = KeyedBlockNoise(Keys(self.keys.seeds[row : row + 1]))
            state = model.open(read(prompts[0]), noise, self.size)
            for block in sorted(prompts.keys() - {0}):
                state.switch(read(prompts[block]), block)
            states.append(state)
        return states

    def text(self, row: int, block: int) -> str:
        """Return the text that a block is scored by."""
        texts = self.reward_prompts[row]
        return texts[max(first for first in texts if first <= block)]


Prompts = str | Sequence[str] | Tensor


def prompt_rows(prompts: Prompts, rows: int | None = None, name: str = "prompts") -> list[Prompt]:
    """Return one prompt per row.

    Args:
        prompts: A text, texts, or encoder states float [B, L, d].
        rows: The expected number of rows, to which a single text is repeated; None for as many as there are prompts.
        name: The argument that errors name.

    Raises:
        ValueError: The prompts have another form or another number of rows.
    """
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
    """Return, per row, the prompts by the block from which each applies.

    Raises:
        ValueError: A block is outside the video, or `later` is no dict.
    """
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
    """Return, per row, the texts that blocks are scored by; None where a row has no text.

    Args:
        shown: Per row, the prompts by block.
        given: Texts that replace them for scoring, alone or by block; None for the prompts.
        blocks: The number of blocks of a video.
    """
    more = dict(given) if isinstance(given, Mapping) else {} if given is None else {0: given}
    own = prompts_by_block([rows[0] for rows in shown], more, blocks, "reward_prompt")
    texts = [{**rows, **others} for rows, others in zip(shown, own, strict=True)]
    return texts if all(isinstance(text, str) for rows in texts for text in rows.values()) else None


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The pixels of a block.

    Attributes:
        frames: uint8 [N, 3, H, W].
        after: The state of the autoencoder after the block; None where the next block starts anew.
    """

    frames: Tensor
    after: VAEState | None


@dataclass(slots=True)
class VideoRowState:
    """The committed blocks of a row and, until the round ends, the candidates for the next block.

    Attributes:
        state: The target's state.
        committed: Per block, latents [1, C, F, h, w].
        frames: Per block, pixels uint8 [N, 3, H, W] on the host.
        vae_state: The autoencoder's state after the committed blocks. Decoding a draft does not change it.
        slots: Latents of the candidates by handle.
        decoded: Pixels of the candidates that have been decoded, by handle.
        anchor: Frame scores of the block that began the prompt, where a router reads them.
        run: Consecutive accepted drafts since the target's last block.
        records: Per committed block, see `BlockRecord`.
        record: The record of the next block.
    """

    state: BlockVideoState
    committed: list[Tensor] = field(default_factory=list)
    frames: list[Tensor] = field(default_factory=list)
    vae_state: VAEState | None = None
    slots: dict[int, Tensor] = field(default_factory=dict)
    decoded: dict[int, DecodedBlock] = field(default_factory=dict)
    anchor: Tensor | None = None
    run: int = 0
    records: list[BlockRecord] = field(default_factory=list)
    record: BlockRecord = field(default_factory=BlockRecord)

    @property
    def target_blocks(self) -> int:
        """The number of blocks that the target generated."""
        return sum(not record.kept for record in self.records)

    def put(self, latents: Tensor, drafted: bool) -> int:
        """Store a candidate for the next block until the round ends; return its handle."""
        handle = 2 * len(self.committed) + drafted
        self.slots[handle] = latents
        return handle

    def commit(self, handle: int, kept: bool) -> None:
        """Commit a candidate and drop the others."""
        self.record.kept = kept
        self.run = self.run + 1 if kept else 0
        self.committed.append(self.slots[handle])
        if handle in self.decoded:
            self.frames.append(self.decoded[handle].frames)
            self.vae_state = self.decoded[handle].after
        self.records.append(self.record)
        self.clear()

    def clear(self) -> None:
        """Drop all candidates and their record."""
        self.slots, self.decoded, self.record = {}, {}, BlockRecord()
