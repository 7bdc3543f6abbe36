"""Two drafters of text without a model: one copies, one draws."""

import torch
from torch import Tensor

from mmspec.core import Draft, Evidence, Keys, Law, Memoryless, Purpose, Verdict, chain, root_only
from mmspec.core.sampling import draw
from mmspec.vlm.target import TextTarget


class LastSeen:
    """Drafts what followed the present token the last time it occurred, and so on. Picked, so exact with every exact rule."""

    name = "last_seen"

    def __init__(self, length: int = 4):
        self.length = length

    def open(self, target: TextTarget) -> "Followers":
        return Followers(self.length, target)


class Followers:
    """One request. after: per row, token -> the token that followed it last."""

    passes = 0  # of a drafter's model, and here is none

    def __init__(self, length: int, target: TextTarget):
        self.length, self.pictures = length, set(target.parts.placeholders)
        self.text = [row.tolist() for row in target.prompt]
        self.after = [dict(zip(row, row[1:], strict=False)) for row in self.text]

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        rooms = target.rooms(self.length)  # what a row can still take, 0 where it has stopped
        runs = [self.run(row, room) for row, room in enumerate(rooms)]
        longest = max(map(len, runs))
        if not longest:
            return root_only(target.pending)
        value = torch.tensor([run + [0] * (longest - len(run)) for run in runs], device=target.device)  # [B, N - 1]
        valid = torch.arange(longest + 1, device=target.device) <= torch.tensor([[len(run)] for run in runs])
        return Draft(torch.cat([target.pending[:, None], value], 1), chain(longest), Law("deterministic"), valid)

    def run(self, row: int, room: int) -> list[int]:
        found, token = [], self.text[row][-1]
        while len(found) < room and (token := self.after[row].get(token, -1)) >= 0 and token not in self.pictures:
            found.append(token)
        return found

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        for row, tokens in enumerate(target.tokens):
            new = tokens[len(self.text[row]) - target.prompt.shape[1] :]
            self.after[row] |= zip([self.text[row][-1], *new], new, strict=False)
            self.text[row] += new


class Unigram(Memoryless):
    """Draws every token from one law, `scores` float32 [V], and keeps that law on record."""

    name = "unigram"

    def __init__(self, scores: Tensor, length: int = 3):
        self.scores, self.length = scores, length

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        scores = self.scores.expand(target.batch, self.length, -1)  # [B, N - 1, V]
        value = draw(scores, keys.uniform(Purpose.DRAFT, self.length))
        row = torch.tensor([*range(self.length), -1])  # whose children have which law; the last node has none
        return Draft(
            torch.cat([target.pending[:, None], value], 1),
            chain(self.length),
            Law("without_replacement", row, scores),
        )
