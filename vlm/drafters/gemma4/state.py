"""One request of a Gemma 4 assistant: a view of what the target keeps of committed tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.vlm.drafters.gemma4.drafter import SLIDING
from mmspec.vlm.drafters.head_state import HeadState


class AssistantState(HeadState):
    """Keeps no keys and values: every round reads the target's committed slots anew.

    kept, turnings: of the round, see `Gemma4Assistant.forward`.
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.sources = self.drafter.sources(target.parts)
        self.kept: dict[str, tuple] = {}
        self.turnings: dict[str, Tensor] = {}

    @torch.no_grad()
    def ready(self) -> None:
        """Drafts the first token's row behind the root."""
        if self.root is None:
            self._look()
            self.root = self._rows(self.target.pending[:, None], self.source)[:, 0]

    def _look(self) -> None:
        """Takes the target's committed keys and values into view."""
        target, config = self.target, self.drafter.config
        self.turnings = self.drafter.turnings(target.next_position, self.source.dtype)
        for kind in set(config.layer_types):
            keys, values = (x[:, :, : target.cache.width] for x in target.cache.at(self.sources[kind]))
            if keys.shape[-1] != config.dim(kind) or config.num_attention_heads % keys.shape[1]:
                raise ValueError(
                    f"drafter: expected heads of size {keys.shape[-1]} in groups of {keys.shape[1]} as the target's "
                    f"{kind} has, got {config.num_attention_heads} of size {config.dim(kind)}; take its own assistant"
                )
            self.kept[kind] = keys, values, self._bias(kind, keys)

    def _bias(self, kind: str, keys: Tensor) -> Tensor | None:
        """Additive [B, 1, 1, slots]: committed slots without padding, of sliding layers those at most window + 1 back."""
        cache, reach = self.target.cache, self.drafter.config.sliding_window + 1
        narrow = kind == SLIDING and cache.width > reach
        if cache.uniform and cache.hidden is None and not narrow:
            return None
        slot, length = torch.arange(cache.width, device=keys.device), cache.length[:, None]
        seen = slot < length
        if narrow:
            seen = seen & (length - slot <= reach)
        if cache.hidden is not None:
            seen = seen.clone()
            seen[:, : cache.hidden.shape[1]] &= ~cache.hidden[:, : cache.width]
        return torch.where(seen, 0.0, torch.finfo(keys.dtype).min).to(keys.dtype)[:, None, None]

    def _rows(self, token: Tensor, states: Tensor) -> Tensor:
        self.passes += 1
        return self.drafter(self.target.parts.embed(token), states, self.turnings, self.kept)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Rows [B, n, F] behind drafted tokens int64 [B, n]; `hidden`: the rows these were drafted from."""
        return self._rows(token, self.drafter.states(hidden))
