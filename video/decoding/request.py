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
# (row, block, frames uint8 [N, H, W, 3] or None where no pixels are wanted), once the block is finished
Listener = Callable[[int, int, np.ndarray | None], None]


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """The settings of one call, which a decoding prepares for the round.

    prompts: per row, the prompt from each block on; block 0 has one.   reward_prompts: the same, of the texts that blocks are
    scored by; None where a row has no text.   keys: of the rows.   size: rows and columns of a latent frame.
    blocks: of every video.   vae: decodes them.   read: encodes prompts for the target.
    pixels: whether frames are stored; without them a block is decoded only for a reward.
    listener: called for every row's block once it is committed.
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
        """Blocks that begin a prompt."""
        return frozenset(block for row in self.prompts for block in row)

    def open(self, model: BlockVideoModel, read: PromptReader) -> list[BlockVideoState]:
        """A model's state for every row, each a request of its own: rows decide apart, and none meets another's numbers.

        Raises ValueError as the model does.
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
        """The text that a block is scored by."""
        texts = self.reward_prompts[row]
        return texts[max(first for first in texts if first <= block)]


Prompts = str | Sequence[str] | Tensor


def prompt_rows(prompts: Prompts, rows: int | None = None, name: str = "prompts") -> list[Prompt]:
    """One prompt a row: of a text, texts, or states float [B, L, d].

    rows: how many there must be; one for all where it is a single text. None for as many as there are.
    Raises ValueError for anything else.
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
        raise ValueError(f"{name}: expected {wanted}, got {got}; give one a video")
    return each


def prompts_by_block(
    first: Sequence[Prompt], later: Mapping[int, Prompts] | None, blocks: int, name: str
) -> list[dict[int, Prompt]]:
    """Per row, from which block on there is which prompt.   Raises ValueError for a block the video does not have."""
    timeline = [{0: prompt} for prompt in first]
    if not isinstance(later, Mapping | None):
        raise ValueError(
            f"{name}: expected prompts by the block from which on they hold, got {later!r:.60}; pass a dict"
        )
    for block, prompts in sorted((whole(name, block), prompts) for block, prompts in (later or {}).items()):
        if not 0 <= block < blocks:
            raise ValueError(f"{name}: expected blocks 0 to {blocks - 1}, got {block}; name one of the video's")
        for row, prompt in zip(timeline, prompt_rows(prompts, len(timeline), name), strict=True):
            row[block] = prompt
    return timeline


def reward_prompts(
    shown: Sequence[Mapping[int, Prompt]], given: Prompts | Mapping[int, Prompts] | None, blocks: int
) -> list[dict[int, str]] | None:
    """Per row, what blocks are scored by: what is shown, but where `given` says it in other words. None where a row is left
    without words."""
    more = dict(given) if isinstance(given, Mapping) else {} if given is None else {0: given}
    own = prompts_by_block([rows[0] for rows in shown], more, blocks, "reward_prompt")
    texts = [{**rows, **others} for rows, others in zip(shown, own, strict=True)]
    return texts if all(isinstance(text, str) for rows in texts for text in rows.values()) else None


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """frames: uint8 [N, 3, H, W] of a block.   after: the place in the autoencoder behind it; None for a start."""

    frames: Tensor
    after: VAEState | None


@dataclass(slots=True)
class VideoRowState:
    """The committed blocks of a row and, until the round ends, the candidates for the next block.

    state: the target's.   committed: latents [1, C, F, h, w] a block.   frames: their pixels, uint8 [N, 3, H, W] on the host.
    vae_state: in the autoencoder, behind what is committed: a value, so a draft is decoded from it and cannot move it.
    slots: latents of the candidates by handle.   decoded: pixels of the candidates that have been decoded.
    anchor: scores of the frames of the block that began the prompt, where they are asked for.
    run: drafts that stand since the target's last block.   records: see `BlockRecord`.
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
        """Blocks the target drew."""
        return sum(not record.kept for record in self.records)

    def put(self, latents: Tensor, drafted: bool) -> int:
        """Keeps a candidate for the next block until the round ends; returns its handle."""
        handle = 2 * len(self.committed) + drafted
        self.slots[handle] = latents
        return handle

    def commit(self, handle: int, kept: bool) -> None:
        """Commits a candidate and forgets the others."""
        self.record.kept = kept
        self.run = self.run + 1 if kept else 0
        self.committed.append(self.slots[handle])
        if handle in self.decoded:
            self.frames.append(self.decoded[handle].frames)
            self.vae_state = self.decoded[handle].after
        self.records.append(self.record)
        self.clear()

    def clear(self) -> None:
        """Forgets every candidate, without a trace."""
        self.slots, self.decoded, self.record = {}, {}, BlockRecord()
