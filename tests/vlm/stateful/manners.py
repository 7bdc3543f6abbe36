"""Logits processors and stopping criteria with the manners of other projects' ones."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria


def waves(scores: Tensor, phase: float = 0.0) -> Tensor:
    """A pattern over the vocabulary, float32 [V], strong enough to change greedy tokens."""
    return 4.0 * torch.cos(torch.arange(scores.shape[1]) + phase)


class Counter(LogitsProcessor):
    """Counts its calls, and adds another pattern in each of three."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores + waves(scores, self.calls % 3)


class SeenInRow(LogitsProcessor):
    """Holds a list a row, made at the first call, and writes into the scores it is given."""

    def __init__(self) -> None:
        self.rows = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.rows is None:
            self.rows = [[] for _ in input_ids]
        for row, seen in enumerate(self.rows):
            seen.append(int(input_ids[row, -1]))
            scores[row, seen[-4:]] -= 5.0 + row
        return scores


class Place:
    """A grammar's place, which cannot be copied but by `fork`: ids of one residue follow those of the residue before."""

    def __init__(self, kinds: int, place: int = 0):
        self.kinds, self.place = kinds, place

    def fork(self) -> Place:
        return Place(self.kinds, self.place)

    def __deepcopy__(self, memo: dict) -> Place:
        raise TypeError("cannot be copied")

    def accept(self, token: int) -> None:
        assert token % self.kinds == self.place, "the grammar does not allow this token"
        self.place = (self.place + 1) % self.kinds


class Grammar(LogitsProcessor):
    """Follows a grammar's place in every row, and fails at a token that the grammar does not allow. It serves one request."""

    forks = True

    def __init__(self, kinds: int = 3):
        self.kinds, self.places = kinds, None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.places is None:
            made = Place if self.forks else Unforkable
            self.places = [made(self.kinds + row % 2) for row in range(len(input_ids))]
        else:
            for place, token in zip(self.places, input_ids[:, -1].tolist(), strict=True):
                place.accept(token)
        column = torch.arange(scores.shape[1])
        barred = [column % place.kinds != place.place for place in self.places]
        return scores.masked_fill(torch.stack(barred), -torch.inf)


class Unforkable(Place):
    """A place that cannot be copied at all."""

    fork = None


class ReplayedGrammar(Grammar):
    """A grammar whose places cannot be copied, so that only calling it again leads to a place."""

    forks = False


class TriggerPhrase(LogitsProcessor):
    """Forces a phrase where a trigger is the likeliest token, so that its state follows the scores. It holds a place a row."""

    def __init__(self, triggers: tuple[int, ...], phrase: tuple[int, ...] = (41, 42, 43), times: int = 2):
        self.triggers, self.phrase, self.times = triggers, phrase, times
        self.left = self.places = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.places is None:
            self.left, self.places = [self.times] * len(scores), [-1] * len(scores)
        for row, line in enumerate(scores):
            if self.places[row] < 0 and self.left[row] and int(line.argmax()) in self.triggers:
                self.places[row], self.left[row] = 0, self.left[row] - 1
            if self.places[row] >= 0:
                line[self.phrase[self.places[row]]] = 1e3
                self.places[row] = self.places[row] + 1 if self.places[row] + 1 < len(self.phrase) else -1
        return scores


class SameRequest(LogitsProcessor):
    """Begins anew, as a new request does, whenever the ids do not go on from those of the last call."""

    def __init__(self) -> None:
        self.before = self.start = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.before is None or not torch.equal(input_ids[:, :-1], self.before):
            self.start = input_ids
        self.before = input_ids
        return scores + waves(scores, (input_ids.shape[1] - self.start.shape[1]) % 4)


class Pooled(LogitsProcessor):
    """Adds a pattern by what all rows together have generated."""

    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.sum += int(input_ids[:, -1].sum())
        return scores + waves(scores, self.sum % 5)


class Hidden(LogitsProcessor):
    """Has one switch for all rows, which the proof at the start does not come upon."""

    def __init__(self, length: int):
        self.length, self.on = length, False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        first = input_ids[:, -1] % 2 == torch.arange(len(input_ids)) % 2
        self.on = self.on or (input_ids.shape[1] >= self.length + 20 and bool(first.any()))
        return scores + waves(scores) if self.on else scores


def closure() -> object:
    """A function that counts its calls in a variable around it, which no copy of a function has of its own."""
    calls = 0

    def count(input_ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return scores + waves(scores, calls % 3)

    return count


class Counts(StoppingCriteria):
    """Stops every row at a call of its own: the first row at its `first` call, others later."""

    def __init__(self, first: int = 5):
        self.first, self.calls = first, 0

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> Tensor:
        self.calls += 1
        return torch.tensor([self.calls >= self.first + 3 * row for row in range(len(input_ids))])


class DoneRows(StoppingCriteria):
    """Tracks by place which rows have generated two even ids, and says when all have, as an evaluation harness does."""

    def __init__(self, batch: int, length: int):
        self.done, self.length = [False] * batch, length

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> bool:
        for row, done in enumerate(self.done):
            if not done:
                new = input_ids[row, self.length :]
                self.done[row] = len(new) > 1 and bool((new[-2:] % 2 == 0).all())
        return False not in self.done


class RowsBehind(StoppingCriteria):
    """Stops a row by what the row before it holds, ended or not."""

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> Tensor:
        return (input_ids.roll(1, 0)[:, -1] + input_ids[:, -1]) % 7 == 0


class Unsure(StoppingCriteria):
    """Stops a row whose last token was much less likely than all others together."""

    def __init__(self) -> None:
        self.steps = []

    def __call__(self, input_ids: Tensor, scores: object, **kwargs) -> Tensor:
        self.steps.append(len(scores))
        chance = scores[-1].softmax(-1).gather(1, input_ids[:, -1:])[:, 0]
        return chance < 0.25
