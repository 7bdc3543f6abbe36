"""A model continuing the rows of a batch at its own pace: cache, positions and ragged passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.layers.masks import masks
from mmspec.core.tree import chain
from mmspec.vlm.architectures import Parts
from mmspec.vlm.capture import watch
from mmspec.vlm.prompts import first_inputs, first_positions, wrapped_logits


class Context:
    """What a causal model has read of each row of a batch. passes: forward passes so far.

    feature: float [B, H], its last states behind the tokens read last; None before.

    cache.lengths: slots per row, padding included.   next_position: int64 [B] or [A, B], position of the next token.
    """

    def __init__(self, parts: Parts, capacity: int):
        self.parts, self.passes = parts, 0
        self.cache = SlotCache(parts.plan, capacity, device=parts.device, places=parts.places)
        self.next_position: Tensor | None = None
        self.feature: Tensor | None = None

    @torch.no_grad()
    def prefill(self, ids: Tensor, mask: Tensor | None, **kwargs: object) -> None:
        """Reads the prompts. ids: int64 [B, P]; mask: int [B, P], 0 at left padding, or None.

        kwargs: other prompt inputs as `transformers.generate` prepared them (pixel_values...), position_ids among them.
        """
        inputs = first_inputs(self.parts, ids, kwargs | {"attention_mask": mask}, self.cache)
        self.parts.model(**inputs, return_dict=True)
        self.passes += 1
        position = first_positions(inputs, ids, kwargs["position_ids"])
        self.next_position = position[..., -1].expand(*position.shape[:-2], ids.shape[0]) + 1
        self.cache.advance(ids.shape[1])
        if mask is not None:
            self.cache.hidden = mask == 0

    @torch.no_grad()
    def read(self, ids: Tensor, counts: Sequence[int]) -> Tensor:
        """Reads the first `counts[b]` of row b's ids int64 [B, n].

        Returns float32 [B, V], the logits behind each row's last one; those of a row of count 0 mean nothing.
        """
        tree = chain(ids.shape[1] - 1, ids.device)
        inputs = dict(
            input_ids=ids,
            position_ids=self.next_position[..., None] + tree.depth,
            attention_mask=masks(
                self.parts.plan, self.cache, tree.ancestor, tree.depth, tree.max_depth, self.parts.dtype
            ),
            past_key_values=self.cache,
            use_cache=True,
        )
        row = torch.arange(ids.shape[0], device=ids.device)
        last = torch.tensor([max(n - 1, 0) for n in counts], device=ids.device)
        if self.parts.direct:
            self.feature = self.parts.decoder(**inputs).last_hidden_state.to(ids.device)[row, last]
            logits = self.parts.head(self.feature)
        else:
            with watch(self.parts.decoder) as seen:
                logits = wrapped_logits(self.parts, inputs).to(ids.device)[row, last]
            self.feature = seen.hidden.to(ids.device)[row, last]
        self.passes += 1
        self._move(list(counts))
        return logits.float()

    def forget(self, counts: Sequence[int]) -> None:
        """Takes back the last `counts[b]` tokens of row b."""
        self._move([-n for n in counts])

    def _move(self, counts: list[int]) -> None:
        self.cache.advance(counts)
        self.next_position = self.next_position + torch.tensor(counts, device=self.next_position.device)
