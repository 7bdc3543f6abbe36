"""The committed state of earlier turns, and the part of a new prompt that a `generate` call reads after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from weakref import ref

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.fingerprint import Fingerprint, fingerprint, modules_of
from mmspec.core.layers.rope import first_switch
from mmspec.core.round.cache import CacheSnapshot, SlotCache
from mmspec.core.round.loop import DecodingRun, Drafter, DraftState, can_follow, opens_from_ids
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.conversation.turn import (
    StateCheckpoint,
    Turn,
    added_pictures,
    picture_inputs,
    pixel_names,
    visibility_mask,
)
from mmspec.vlm.distributed import agreed
from mmspec.vlm.prefill import UnreadPrompt, first_inputs, first_positions, prompt_inputs
from mmspec.vlm.processors.copies import copy_of, traverse


class Past(Cache):
    """A conversation with a model, passed to `generate` as its `past_key_values`.

    A prompt is the whole conversation so far with all pictures; only its new part is read, with the output of a full
    read:
    - If the prompt continues the cached tokens, nothing is read again, and earlier pictures are not encoded again.
    - If it differs earlier, it is read again from the common prefix, or completely if a picture comes later. Layers with
      states can only go back to the end of the last prompt or the start of its `tail`; an earlier difference is refused.
    - All is read again if earlier tokens would see later tokens (PaliGemma, Molmo2), new pictures reach cross-attention
      layers or cannot be separated from old pictures, RoPE changes at this length, or a new drafter reads the states.
    - All is read again if weights, adapter, attention implementation or device changed, see
      `mmspec.core.layers.fingerprint`. A drafter with changed weights counts as a new drafter.

    A failed call changes nothing but the drafter's state, after which the next call reads all again. `copy.deepcopy`
    and `copy.copy` both return a conversation that goes on independently, so that many requests share a system prompt.
    `ids` are those with the last answer; the cache holds all but the last id. A `Session` sets `tail`, the number of
    last prompt tokens that a later turn may render otherwise."""

    def __init__(self, model: nn.Module):
        super().__init__(layers=[])
        self._model = ref(model)
        self.tail = 0
        self.busy = self.kept = False
        self.forget()

    def forget(self) -> None:
        self.ids: list[int] = []
        self.cache: SlotCache | None = None
        self.pictures: dict[str, object] = {}
        self.places: list[StateCheckpoint] = []
        self.lasting: Mapping[str, Tensor] = {}
        self.position = self.hidden = None
        self.drafter: Drafter | None = None
        self.state: DraftState | None = None
        self.dtype: torch.dtype | None = None
        self.function: Fingerprint | None = None
        self.drafting: Fingerprint | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Past:
        """Copy once no call runs; the model and the drafter are shared."""
        self._check_idle()
        new = memo[id(self)] = object.__new__(type(self))
        shared = {id(part): part for _, part in traverse(self.drafter)}
        vars(new).update(copy_of(vars(self), shared))
        return new

    def __copy__(self) -> Past:
        return self.__deepcopy__({})

    def __reduce_ex__(self, protocol: int) -> tuple:
        raise ValueError(
            "past_key_values: expected an object that can be pickled, got a conversation, whose cache belongs "
            "to a model of this process; store its messages and begin a new conversation"
        )

    @property
    def held(self) -> int:
        return max(len(self.ids) - 1, 0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, so that transformers prepares every prompt as a whole."""
        return 0

    def update(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        raise ValueError(
            "past_key_values: expected a call that mmspec decodes, got the model's own; call mmspec.generate, or "
            "enable the model"
        )

    def check(self, model: nn.Module, rows: int) -> None:
        """Check that a call of `rows` rows on this model can use the conversation."""
        if self._model() is not model:
            raise ValueError(
                "past_key_values: expected the conversation of this model, got another model's; begin a new "
                "conversation with mmspec.Session(model, processor)"
            )
        if rows != 1:
            raise ValueError(
                f"input_ids: expected a single row in a conversation, got {rows}; use a session for each row"
            )
        self._check_idle()

    def _check_idle(self) -> None:
        if self.busy:
            raise ValueError(
                "past_key_values: expected an idle conversation, got a conversation whose last call still runs; wait for it"
            )

    def turn(self, parts: Parts, ids: Tensor, inputs: Mapping[str, object], drafter: Drafter | None) -> Turn:
        """Return the turn of a request on a prompt int64 [1, P], with `rest` still without its positions; `inputs` are
        of `prompt_inputs`. It fails if layers with states cannot go back far enough, or pictures of earlier turns or
        the dtype changed."""
        if self.ids and parts.dtype != self.dtype:
            raise ValueError(
                f"model: expected {self.dtype}, the dtype of this conversation, got {parts.dtype}; call "
                "forget() to read it again in this dtype"
            )
        fresh = Turn(tail=self.tail, function=fingerprint(parts.model), drafting=fingerprint(*modules_of(drafter)))
        is_same = bool(agreed(parts.group, int(fresh.function.same(self.function))))
        if not self.ids or not is_same or not self._drafts(fresh, drafter) or _turns(parts, ids.shape[1]):
            return fresh
        new = added_pictures(self.pictures, picture_inputs(inputs))
        start, before = self._start(parts, ids[0].tolist())
        shows = any(bool((ids[0, start:] == placeholder).any()) for placeholder in parts.placeholders)
        crossing = any(layer.kind == "cross" for layer in parts.plan.layers)
        if start == 0 or new is None or (new and crossing) or shows != bool(new):
            return fresh
        seen = visibility_mask(parts, ids, inputs, start)
        if seen is None:
            return fresh
        new = {name: value.to(ids.device) if isinstance(value, Tensor) else value for name, value in new.items()}
        rest = UnreadPrompt(ids[:, start:], ids[:, start:], seen, new, self.lasting)
        forget = self.held - start + (before is not None)
        return replace(fresh, start=start, cache=self.cache, rest=rest, before=before, forget=forget)

    def _drafts(self, turn: Turn, drafter: Drafter | None) -> bool:
        """Return whether a drafter can continue without the target's states of earlier turns."""
        return drafter is None or opens_from_ids(drafter) or self._follows(turn, drafter)

    def _follows(self, turn: Turn, drafter: Drafter | None) -> bool:
        """Return whether the drafter's state of the last turn can continue in this turn."""
        return drafter is self.drafter and can_follow(self.state) and turn.drafting.same(self.drafting)

    def with_pictures(self, parts: Parts, ids: Tensor, inputs: dict) -> dict:
        """Return a prompt's inputs, with the pictures of earlier turns added if its ids refer to pictures."""
        shown = not parts.placeholders or bool(torch.isin(ids, ids.new_tensor(parts.placeholders)).any())
        return self.pictures | inputs if shown else inputs

    def state_for(self, turn: Turn, drafter: Drafter | None) -> DraftState | None:
        """Return the drafter's state to continue in the turn, None for a new state."""
        return self.state if turn.start and self._follows(turn, drafter) else None

    def _start(self, parts: Parts, ids: list[int]) -> tuple[int, Tensor | None]:
        """Return the number of cached prompt tokens, less than the whole prompt, and the states of the last of them."""
        most = min(self.held, len(ids) - 1)
        same = next((n for n in range(most) if ids[n] != self.ids[n]), most)
        if same == self.held:
            return same, self.hidden
        behind = max((n + 1 for n, token in enumerate(self.ids) if token in parts.placeholders), default=0)
        if self.pictures and not parts.placeholders:  # the places of the pictures are unknown
            behind = len(self.ids)
        if not parts.plan.stateful:
            # another token is read again for its state
            return (same - 1 if same - 1 >= max(behind, 1) else 0), None
        places = [place for place in self.places if behind <= place.count <= same]
        if not places:
            raise ValueError(
                f"input_ids: expected a prompt that continues the {self.held} cached tokens or changes only the "
                f"last message, got a prompt that differs from token {same} on, where recurrent layers cannot "
                "go back to; call forget() to read it all again"
            )
        place = max(places, key=lambda place: place.count)
        return place.count, place.hidden

    def _go_back(self, turn: Turn) -> None:
        if turn.start == 0 or turn.start == self.held:
            return
        place = next((place for place in self.places if place.count == turn.start), None)
        self.cache.back(
            place.mark if place is not None and turn.before is not None else CacheSnapshot([turn.start], [])
        )

    def expects(self, turn: Turn, positions: Tensor) -> None:
        """Check that the model's positions of the whole prompt leave the cached tokens at their positions; `positions`,
        int64 [..., 1, n], are those of the tokens to read."""
        if turn.start == self.held and bool((positions[..., 0].flatten() != self.position.flatten()).any()):
            raise ValueError(
                "position_ids: expected cached tokens at the positions at which they were read, got a prompt "
                "that moves them; call forget() to read it all again"
            )

    @contextmanager
    def lent(self, turn: Turn) -> Iterator[None]:
        """Lend the cache to a request inside the block. If the block ends without `keep`, the cache is restored, or
        cleared if the request has overwritten cached tokens."""
        before = self.cache.mark() if turn.start else None
        self.busy, self.kept = True, False
        try:
            self._go_back(turn)
            yield
        finally:
            self.busy = False
            if not self.kept and turn.start:
                if turn.start < self.held:
                    self.forget()
                else:
                    self.drafter = self.state = None
                    self.cache.back(before)

    def keep(self, decoding: DecodingRun, pictures: Mapping[str, object]) -> None:
        """Store a finished request's state and tokens, and the `picture_inputs` of its prompt."""
        target = decoding.target
        self.kept = True
        self.ids = target.prompt[0].tolist() + target.tokens[0]
        self.cache, self.lasting, self.places = target.cache, target.lasting, target.places
        self.position, self.hidden = target.next_position, target.last_hidden
        self.pictures = dict(pictures)
        self.drafter, self.state = decoding.drafter, decoding.state
        self.dtype, self.function, self.drafting = target.parts.dtype, target.turn.function, target.turn.drafting


def _turns(parts: Parts, count: int) -> bool:
    """Return whether RoPE has other frequencies for a prompt of `count` tokens than for shorter prompts."""
    return bool(parts.rotary) and count > first_switch(parts.rotary)


def past_of(inputs: dict) -> Past | None:
    """Return the conversation among the arguments of a `generate` call, None without a conversation."""
    past = inputs.get(CACHE)
    return past if isinstance(past, Past) else None


def open_turn(past: Past, model: nn.Module, inputs: dict, drafter: Drafter | None) -> tuple[dict, Turn]:
    """Return the arguments of `generate` without the pixels of earlier turns, which it would encode again, and the
    turn. The arguments may already omit the pictures of earlier turns."""
    ids = inputs.get("input_ids", inputs.get("inputs"))
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.shape[1]:
        raise ValueError(
            "input_ids: expected the ids of the whole conversation, got none; pass the processor's outputs for it"
        )
    past.check(model, ids.shape[0])
    parts = take_apart(model)
    inputs = past.with_pictures(parts, ids, inputs)
    if inputs.get("attention_mask") is None:  # else the padding id would count as padding inside an answer
        inputs = inputs | {"attention_mask": torch.ones_like(ids)}
    prompt = prompt_inputs(inputs, model.generation_config)
    turn = past.turn(parts, ids, prompt, drafter)
    dropped = pixel_names(picture_inputs(prompt)) if turn.start else set()
    return {name: value for name, value in inputs.items() if name not in dropped}, turn


def with_positions(past: Past, turn: Turn, parts: Parts, ids: Tensor, kwargs: dict) -> Turn:
    """Return the turn with the positions that the model class computes for the whole prompt, `ids` int64 [1, P] without
    padding; `generate` has prepared `kwargs`."""
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError(
            "attention_mask: expected the row of a conversation without padding, got zeros; pass a mask of ones"
        )
    if not turn.start:
        return turn
    inputs = first_inputs(parts, ids, kwargs, SlotCache(parts.plan, 1))
    positions = first_positions(inputs, ids, kwargs.get("position_ids"))[..., turn.start :]
    past.expects(turn, positions)
    return replace(turn, rest=replace(turn.rest, positions=positions))
