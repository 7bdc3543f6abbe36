"""What a request for videos asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.video.generation.noise import KeyedBlockNoise
from mmspec.video.model import BlockVideoModel, BlockVideoState

Prompt = str | Tensor  # a text, or what a text encoder made of one, float [1, L, d]
Read = Callable[[Prompt], Tensor]


@dataclass(frozen=True, slots=True)
class Script:
    """prompts: per row, from which block on there is which prompt; block 0 has one.   judged: the same, of the texts that
    blocks are scored by; None where there are none.   keys: of the rows.   size: rows and columns of a latent frame.
    blocks: of every video.
    """

    prompts: Sequence[Mapping[int, Prompt]]
    judged: Sequence[Mapping[int, str]] | None
    keys: Keys
    size: tuple[int, int]
    blocks: int

    @property
    def anchors(self) -> frozenset[int]:
        """Blocks that begin a prompt."""
        return frozenset(block for row in self.prompts for block in row)

    def open(self, model: BlockVideoModel, read: Read) -> list[BlockVideoState]:
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
        """What the block is scored by."""
        texts = self.judged[row]
        return texts[max(first for first in texts if first <= block)]
