"""DEL: the target's first layers draft; exit and length follow the acceptance measured at every exit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import ConfidenceStop, FixedLength
from mmspec.core.round.draft import Draft, EntryStates, Evidence, Verdict, gather_nodes, root_only, run_of
from mmspec.core.round.keys import Keys
from mmspec.io.validation import Range, Share, Size, check_fields
from mmspec.methods import MethodParts, method
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.self_draft import SelfDraftState
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.partial_passes import check_partial, first_exit, read_ahead
from mmspec.vlm.target import TextTarget


@dataclass(slots=True)
class ExitControl:
    """The choice of an exit and a length by the expected tokens per unit of work, the work of a layer over a token. A
    draft of d tokens (or 0) at exit l yields (1 - a^(d + 1)) / (1 - a) tokens for d (l + h) + L + h units: acceptance
    a, L layers, and h the work of the head. The first rounds weigh more than in the paper, which states no start."""

    exits: tuple[int, ...]  # as numbers of layers
    layers: int  # of the target
    head: float = 0.0  # its work in units of a layer
    longest: int = 8  # the most tokens of a draft
    keep: float = 0.95  # the share of the old acceptance that a round keeps
    rates: list[float] = field(default_factory=list)  # the acceptance at each exit; empty before the first round
    rounds: float = 0.0  # the weight of the rounds so far

    def learn(self, shares: list[float]) -> None:
        """Add a round: per exit, the share of the accepted path's tokens that the exit alone would have chosen."""
        old, self.rounds = self.rates or shares, self.keep * self.rounds + 1
        self.rates = [rate + (share - rate) / self.rounds for rate, share in zip(old, shares, strict=True)]

    def gain(self, place: int, length: int) -> float:
        """Return the expected tokens per unit of work of a draft of `length` tokens at the exit number `place`."""
        rate = self.rates[place]
        tokens = length + 1.0 if rate == 1 else (1 - rate ** (length + 1)) / (1 - rate)
        return tokens / (length * (self.exits[place] + self.head) + self.layers + self.head)

    def best(self, longest: int) -> tuple[int, int]:
        """Return the number of the best exit and its length, at most `longest`; length 0 where no draft pays."""
        if not self.rates:
            return 0, 0
        choices = [(place, length) for place in range(len(self.exits)) for length in range(1, longest + 1)]
        return max([(0, 0), *choices], key=lambda choice: self.gain(*choice))


@dataclass(frozen=True, slots=True)
class DynamicExit:
    """Chain drafts of the target's first layers with the target's head, without training. Exact.

    Paper: "DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative Decoding". It pays on targets trained with
    early exits, such as LayerSkip's. A round without an exit that pays decodes plainly. A verification runs the layers
    behind the exit alone. The rows of a batch share exit and length, so a row's drafts depend on its batch; its
    distribution does not. The paper's threshold is not published; ours is a share of the exit's acceptance.

    Args:
        exits: The exits, ascending numbers of layers.
        longest: The most tokens of a draft.
        keep: The share of the old acceptance that a round keeps.
        stop: A draft ends where the likeliest next token is below this share of the exit's acceptance.
        rest: Rounds without drafts between two measurements, which run the head at every exit.

    Raises:
        ValueError: A setting is out of range, or, on use, the target has no such exits.
    """

    exits: tuple[int, ...]
    longest: Size = 8
    keep: Annotated[float, Range(0, below=1)] = 0.95
    stop: Share = 0.5
    rest: Size = 16

    name = "del"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.exits or list(self.exits) != sorted(set(self.exits)):
            raise ValueError(f"exits: expected ascending numbers of layers, got {self.exits}; name at least one")

    @property
    def levels(self) -> tuple[int, ...]:
        """The target's states that are read: those at the exits."""
        return self.exits

    def open(self, target: TextTarget) -> DynamicExitState:
        for number in self.exits:
            check_partial(target.parts, number)
        return DynamicExitState(self, target)


class DynamicExitState(SelfDraftState):
    def __init__(self, drafter: DynamicExit, target: TextTarget):
        super().__init__(target, FixedLength(drafter.longest))
        self.drafter = drafter
        self.control = ExitControl(
            drafter.exits, target.parts.layers, head_work(target.parts), drafter.longest, drafter.keep
        )
        self.below: list[dict[int, Tensor]] = []
        self.rested = 0

    def follow(self, target: TextTarget) -> DynamicExitState:
        state = DynamicExitState(self.drafter, target)
        state.control.rates, state.control.rounds = self.control.rates, self.control.rounds
        return state

    def enter(self, token: Tensor) -> Tensor:
        """Run the layers below the exit over the next token, and store the states at the exits below it."""
        end = self.layers[0]
        below = {level: token for level in self.drafter.exits if level < end}  # replaced by states in the pass
        self.passes += 1
        embeds = self.target.parts.embed(token)
        self.states.append(read_ahead(self.target, embeds, len(self.states), 0, end, (), below))
        self.below.append(below)
        return self.states[-1]

    @torch.no_grad()
    def propose(self, target: TextTarget, keys: Keys, longest: int | None = None) -> Draft:
        """Return a chain at the exit that promises most, with its states; the root alone where no draft pays."""
        place, length = self.control.best(min(max(target.rooms(self.deepest)), longest or self.deepest))
        if not length:
            return root_only(target.pending)
        exit, rate = self.drafter.exits[place], self.control.rates[place]
        self.layers, self.below = (exit, frozenset()), []
        self.shape = Chain(ConfidenceStop(self.drafter.stop * rate, longest=length))
        draft = super().propose(target, keys, length)
        if len(self.states) < draft.tree.nodes:
            self.enter(draft.value[:, -1:])
        below = {level: torch.cat([states[level] for states in self.below], 1) for level in self.below[0]}
        draft.entry = EntryStates(exit, torch.cat(self.states, 1), draft.value, below)
        return draft

    @torch.no_grad()
    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Compare the tokens of the accepted path with those that every exit would have chosen."""
        self.rested = 0 if draft.tree.nodes > 1 else self.rested + 1
        if self.control.rates and self.rested % self.drafter.rest:
            return
        width = max(map(len, target.paths))
        step = torch.arange(width, device=target.device)
        counted = step < torch.tensor([[len(path)] for path in target.paths], device=target.device)
        hidden = gather_nodes(evidence.hidden, verdict.path[:, :width])
        tokens = run_of(draft, verdict)[0][:, :width]
        states = hidden.unflatten(-1, (len(self.drafter.exits), -1))
        hits = self.logits(states, 0).argmax(-1) == tokens[..., None]
        self.control.learn(hits[counted].float().mean(0).tolist())


def head_work(parts: Parts) -> float:
    """Return the weights of the head in units of a layer's."""
    layer = sum(weight.numel() for weight in parts.decoder.layers[-1].parameters())
    return parts.head.weight.numel() / max(layer, 1)


@method(
    "del",
    domain="vlm",
    kind="drafter",
    title="DEL",
    exact=True,
    drafts=("sampled chain",),
    steps=("part", 50, 0),
    order=25,
    about="the target's first layers and its head; exit and length follow the measured acceptance",
    paper="DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative Decoding",
)
def dynamic_exit(
    parts: MethodParts, every: int = 4, longest: int = 8, keep: float = 0.95, stop: float = 0.5, rest: int = 16
) -> DynamicExit:
    """Return `DynamicExit` with an exit behind every `every` layers of the model.

    Args:
        parts: The model.
        every: The layers between two exits.
        longest: The most tokens of a draft.
        keep: The share of the old acceptance that a round keeps.
        stop: A draft ends where the likeliest next token is below this share of the exit's acceptance.
        rest: Rounds without drafts between two measurements.
    """
    target = take_apart(unwrapped(parts.model))
    if not 1 <= every < target.layers:
        raise ValueError(f"every: expected 1 to {target.layers - 1} layers between two exits, got {every}; lower it")
    least = first_exit(target)
    return DynamicExit(
        tuple(number for number in range(every, target.layers, every) if number >= least), longest, keep, stop, rest
    )
