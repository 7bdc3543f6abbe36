"""A layer that keeps convolution windows and recurrent states instead of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from mmspec.core.layers.paths import Paths
from mmspec.core.layers.slot_layers import SlotLayer

if TYPE_CHECKING:
    from mmspec.core.cache import SlotCache


@dataclass(slots=True)
class States:
    """What a layer remembers, by the number of the pair. conv: [rows, C, K], the last K inputs of a convolution.   recurrent:
    [rows, ...].   Either is None where a layer has none."""

    conv: dict[int, Tensor | None] = field(default_factory=dict)
    recurrent: dict[int, Tensor | None] = field(default_factory=dict)

    def rows(self, index: Tensor) -> States:
        """Copies of some rows. index: int64 [n]."""
        return States(
            *({n: None if x is None else x[index] for n, x in one.items()} for one in (self.conv, self.recurrent))
        )

    @classmethod
    def joined(cls, several: list[States]) -> States:
        """The rows of several, one behind the other."""
        return cls(*(
            {n: x if x is None else torch.cat([one[n] for one in kind]) for n, x in kind[0].items()}
            for kind in ([states.conv for states in several], [states.recurrent for states in several])
        ))  # fmt: skip

    def put(self, index: Tensor, other: States) -> States:
        """These states with `other` in the rows `index`, int64 [n]."""
        return States(*(
            {n: x if x is None else x.index_copy(0, index, new[n].to(x)) for n, x in old.items()}
            for old, new in ((self.conv, other.conv), (self.recurrent, other.recurrent))
        ))  # fmt: skip


class Part(Protocol):
    """What a pass over a draft left of one mixer of a layer."""

    def behind(self, states: States, paths: Paths) -> States:
        """`states`, those before the pass, with this mixer's own behind each row's accepted path."""


class StateLayer(LinearAttentionCacheLayerMixin):
    """The prompt's pass commits its states itself. Any later pass runs inside `serving`, which shows a mixer states and takes
    what it makes of them, and leaves its parts in `pending`; `commit` asks these for the states behind the accepted path.

    committed: the states behind all committed tokens.   pending: parts of the last pass, None before the first.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, number_of_states: int = 1):
        LinearAttentionCacheLayerMixin.__init__(self, number_of_states)
        self.committed = States()
        self.pending: list[Part] | None = None
        self.made: States | None = None
        self.full: dict[int, Tensor] = {}

    def lazy_initialization(self, *args, **kwargs) -> None:
        return None

    def open(self) -> None:
        """Begins a pass over a draft; one that was not committed is forgotten."""
        self.pending = []

    @contextmanager
    def serving(self, before: States, shown: States) -> Iterator[States]:
        """A mixer called inside sees the states `shown`, and what it adds is put behind those `before`.

        Yields the states it leaves; `full` holds a convolution's window and inputs, [rows, C, K + N].
        """
        self.made, self.full = States(dict(before.conv), dict(before.recurrent)), {}
        for n in range(self.number_of_states):
            self.conv_states[n], self.recurrent_states[n] = shown.conv.get(n), shown.recurrent.get(n)
            # Without states to step from, every version of a class reads a single node as it reads several.
            self.has_previous_state[n] = n in shown.conv or n in shown.recurrent
        try:
            yield self.made
        finally:
            self.made = None
            self.has_previous_state = dict.fromkeys(self.has_previous_state, True)  # models ask for it to choose a mask

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs
    ) -> Tensor:
        """Takes a convolution's inputs [rows, C, N] and returns them behind those before, [rows, C, K + N]."""
        if self.made is None:
            self._check_prompt()
            size = conv_kernel_size or conv_states.shape[-1]
            full = torch.nn.functional.pad(conv_states, (max(size - conv_states.shape[-1], 0), 0))
            self.committed.conv[state_idx] = full[..., -size:].clone()
            return full
        held = self.made.conv[state_idx]
        full = torch.cat([held, conv_states.to(held.dtype)], -1)
        self.full[state_idx] = full
        self.made.conv[state_idx] = full[..., -held.shape[-1] :]
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        """Takes the recurrent states behind a call."""
        if self.made is None:
            self._check_prompt()
            self.committed.recurrent[state_idx] = recurrent_states.clone()
        else:
            self.made.recurrent[state_idx] = recurrent_states
        return recurrent_states

    def _check_prompt(self) -> None:
        if self.pending is not None:
            raise ValueError("model: expected drafted passes to go through mixers that are known, got one that writes its "
                             "state itself; decode it with model.generate")  # fmt: skip

    def commit(self, paths: Paths) -> None:
        """Moves each row's states to the end of its path. Behind the prompt there is nothing to do: its last token's state is
        committed already, though its slot is counted only now."""
        for part in self.pending or ():
            self.committed = part.behind(self.committed, paths)
        if self.pending:
            self.pending = []


class MixedLayer(StateLayer, SlotLayer):
    """A layer with attention over slots and with states."""

    def __init__(self, cache: SlotCache, index: int, number_of_states: int = 1):
        SlotLayer.__init__(self, cache, index)
        StateLayer.__init__(self, number_of_states)
