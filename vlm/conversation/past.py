"""The committed state of earlier turns, and the part of a new prompt that a `generate` call reads behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from weakref import ref

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from mmspec.core.cache import CacheSnapshot, SlotCache
from mmspec.core.fingerprint import Fingerprint, fingerprint, modules_of
from mmspec.core.loop import DecodingRun, Drafter, DraftState, can_follow
from mmspec.core.rope import first_switch
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


class Past(Cache):
    """A conversation with one model, given to `generate` as its `past_key_values`; what a call has read and said is kept, and
    the next call's prompt, which is the whole conversation so far with all of its pictures, is read only where it is new.

    What is read again, so that the tokens are always those of the whole prompt:
    - a prompt that goes on behind the tokens held: nothing. Pictures held are not encoded again either.
    - one that differs earlier (templates that leave out thoughts, answers that are split into other tokens): everything from
      the common prefix on, where all layers keep slots; behind a picture at most, else all.
      Layers with states go back to where the last prompt ended, or to its tail's beginning (`tail`); a prompt that
      differs before that is refused.
    - all of it where earlier tokens would see new ones (PaliGemma, whose prompts are read as one; Molmo2, whose pictures are),
      where pictures come to layers of cross attention, where the new pictures cannot be told from the old ones by their
      inputs, where RoPE changes with this length, and for another drafter than before that reads the target's states.
    - all of it where the model has become another function since: loaded or trained weights, another adapter, another
      attention implementation, another device (see `mmspec.core.fingerprint`, which says what it cannot see). A drafter
      whose weights have changed counts as another drafter.

    ids: of the conversation, the last answer included; the cache holds all but the last of them.
    tail: how many of the next prompt's last tokens a later turn may render otherwise, as a `Session` knows.
    A call that fails leaves everything as it was before it, but for the drafter's state: the next call then reads all again.
    """

    def __init__(self, model: nn.Module):
        super().__init__(layers=[])
        self._model = ref(model)
        self.tail = 0
        self.busy = self.kept = False
        self.forget()

    def forget(self) -> None:
        """Begins anew: the next call reads its whole prompt."""
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

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return max(len(self.ids) - 1, 0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: transformers is to prepare every prompt as a whole one."""
        return 0

    def update(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        raise ValueError("past_key_values: expected a call that mmspec decodes, got the model's own; call mmspec.generate, or "
                         "enable the model")  # fmt: skip

    def check(self, model: nn.Module, rows: int) -> None:
        """Raises ValueError where the conversation is another model's or still under way, and for more than one row."""
        if self._model() is not model:
            raise ValueError("past_key_values: expected the conversation of this model, got another's; begin one with "
                             "mmspec.Session(model, processor)")  # fmt: skip
        if rows != 1:
            raise ValueError(f"input_ids: expected the one row of a conversation, got {rows}; keep a session for each")
        if self.busy:
            raise ValueError(
                "past_key_values: expected a conversation at rest, got one whose last call still runs; wait for it"
            )

    def turn(self, parts: Parts, ids: Tensor, inputs: Mapping[str, object], drafter: Drafter | None) -> Turn:
        """What a request for the prompt `ids` int64 [1, P] is given; `rest` still without its positions.

        inputs: the prompt's, see `prompt_inputs`.
        Raises ValueError for layers with states where they cannot go back, for pictures of earlier turns that are others, and
        for a model whose precision has changed.
        """
        if self.ids and parts.dtype != self.dtype:
            raise ValueError(f"model: expected {self.dtype}, in which this conversation was read, got {parts.dtype}; call "
                             "forget() to read it again in this precision")  # fmt: skip
        fresh = Turn(tail=self.tail, function=fingerprint(parts.model), drafting=fingerprint(*modules_of(drafter)))
        is_same = bool(agreed(parts.group, int(fresh.function.same(self.function))))
        if not self.ids or not is_same or not self._drafts(fresh, drafter) or _turns(parts, ids.shape[1]):
            return fresh
        new = added_pictures(self.pictures, picture_inputs(inputs))
        start, before = self._start(parts, ids[0].tolist())
        shows = any(bool((ids[0, start:] == one).any()) for one in parts.placeholders)
        crossing = any(layer.kind == "cross" for layer in parts.plan.layers)
        if start == 0 or new is None or (new and crossing) or shows != bool(new):
            return fresh
        seen = visibility_mask(parts, ids, inputs, start)
        if seen is None:
            return fresh
        new = {name: one.to(ids.device) if isinstance(one, Tensor) else one for name, one in new.items()}
        rest = UnreadPrompt(ids[:, start:], ids[:, start:], seen, new, self.lasting)
        forget = self.held - start + (before is not None)
        return replace(fresh, start=start, cache=self.cache, rest=rest, before=before, forget=forget)

    def _drafts(self, turn: Turn, drafter: Drafter | None) -> bool:
        """Whether a drafter can go on without reading the target's states of earlier turns again."""
        return drafter is None or getattr(drafter, "from_ids", False) or self._follows(turn, drafter)

    def _follows(self, turn: Turn, drafter: Drafter | None) -> bool:
        """Whether the drafter's state of the last turn can go on in this one."""
        return drafter is self.drafter and can_follow(self.state) and turn.drafting.same(self.drafting)

    def with_pictures(self, parts: Parts, ids: Tensor, inputs: dict) -> dict:
        """A prompt's inputs with the pictures of earlier turns where it shows some and leaves them out."""
        shown = not parts.placeholders or bool(torch.isin(ids, ids.new_tensor(parts.placeholders)).any())
        return self.pictures | inputs if shown else inputs

    def state_for(self, turn: Turn, drafter: Drafter | None) -> DraftState | None:
        """The drafter's state that follows the turn, None where a new one is opened."""
        return self.state if turn.start and self._follows(turn, drafter) else None

    def _start(self, parts: Parts, ids: list[int]) -> tuple[int, Tensor | None]:
        """How many of the prompt's tokens are held, at least one fewer than it has; the states behind the last of them."""
        most = min(self.held, len(ids) - 1)
        same = next((n for n in range(most) if ids[n] != self.ids[n]), most)
        if same == self.held:
            return same, self.hidden
        behind = max((n + 1 for n, token in enumerate(self.ids) if token in parts.placeholders), default=0)
        if self.pictures and not parts.placeholders:  # where they stand is not known
            behind = len(self.ids)
        if not parts.plan.stateful:
            # one more token is read again, for the state behind it
            return (same - 1 if same - 1 >= max(behind, 1) else 0), None
        places = [place for place in self.places if behind <= place.count <= same]
        if not places:
            raise ValueError(f"input_ids: expected a prompt that goes on behind the {self.held} tokens held, or differs in "
                             f"what was said last, got one that differs from token {same} on, where recurrent layers "
                             "cannot go back to; call forget() to read it all again")  # fmt: skip
        place = max(places, key=lambda one: one.count)
        return place.count, place.hidden

    def _go_back(self, turn: Turn) -> None:
        """Leaves in the cache what the turn's prompt shares with it."""
        if turn.start == 0 or turn.start == self.held:
            return
        place = next((one for one in self.places if one.count == turn.start), None)
        self.cache.back(
            place.mark if place is not None and turn.before is not None else CacheSnapshot([turn.start], [])
        )

    def expects(self, turn: Turn, positions: Tensor) -> None:
        """Raises ValueError where the model's positions of a whole prompt would move tokens that are held.

        positions: int64 [..., 1, n], of the rest.
        """
        if turn.start == self.held and bool((positions[..., 0].flatten() != self.position.flatten()).any()):
            raise ValueError("position_ids: expected the tokens held at the positions they were read at, got a prompt that "
                             "moves them; call forget() to read it all again")  # fmt: skip

    @contextmanager
    def lent(self, turn: Turn) -> Iterator[None]:
        """The cache belongs to a request inside the block; where that ends without `keep` it is what it was, or empty where
        the request has written over what was held."""
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
        """Takes over the state and tokens of a finished request. pictures: its prompt's, as `picture_inputs` gives them."""
        target = decoding.target
        self.kept = True
        self.ids = target.prompt[0].tolist() + target.tokens[0]
        self.cache, self.lasting, self.places = target.cache, target.lasting, target.places
        self.position, self.hidden = target.next_position, target.last_hidden
        self.pictures = dict(pictures)
        self.drafter, self.state = decoding.drafter, decoding.state
        self.dtype, self.function, self.drafting = target.parts.dtype, target.turn.function, target.turn.drafting


def _turns(parts: Parts, count: int) -> bool:
    """Whether RoPE turns a prompt of `count` tokens by another frequency than shorter ones."""
    return bool(parts.rotary) and count > first_switch(parts.rotary)


def past_of(inputs: dict) -> Past | None:
    """The conversation among the arguments of a `generate` call."""
    past = inputs.get("past_key_values")
    return past if isinstance(past, Past) else None


def open_turn(past: Past, model: nn.Module, inputs: dict, drafter: Drafter | None) -> tuple[dict, Turn]:
    """The arguments of `generate` without the pixels that nothing will read, and the turn: transformers encodes pictures
    before it calls us. inputs: the arguments as given; pictures that are left out are those of the turns before.

    Raises ValueError as `Past.check` and `Past.turn` do, and where the prompt is no row of ids.
    """
    ids = inputs.get("input_ids", inputs.get("inputs"))
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.shape[1]:
        raise ValueError(
            "input_ids: expected the ids of the whole conversation, got none; pass what the processor makes of it"
        )
    past.check(model, ids.shape[0])
    parts = take_apart(model)
    inputs = past.with_pictures(parts, ids, inputs)
    if inputs.get("attention_mask") is None:  # else the padding's id would count as padding where it was said
        inputs = inputs | {"attention_mask": torch.ones_like(ids)}
    prompt = prompt_inputs(inputs, model.generation_config)
    turn = past.turn(parts, ids, prompt, drafter)
    dropped = pixel_names(picture_inputs(prompt)) if turn.start else set()
    return {name: one for name, one in inputs.items() if name not in dropped}, turn


def with_positions(past: Past, turn: Turn, parts: Parts, ids: Tensor, kwargs: dict) -> Turn:
    """The turn with the positions that the class gives the whole prompt. kwargs: as `generate` prepared them.

    Raises ValueError for padding, and as `Past.expects` does.
    """
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError(
            "attention_mask: expected the one row of a conversation without padding, got zeros; give it ones"
        )
    if not turn.start:
        return turn
    inputs = first_inputs(parts, ids, kwargs, SlotCache(parts.plan, 1))
    positions = first_positions(inputs, ids, kwargs["position_ids"])[..., turn.start :]
    past.expects(turn, positions)
    return replace(turn, rest=replace(turn.rest, positions=positions))
