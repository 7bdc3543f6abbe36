"""The target's side of a model that drafts for another target and verifies the drafts of its own drafter."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import LogitsProcessorList, StoppingCriteriaList

from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.draft_model import mask_placeholders, prompt_for
from mmspec.vlm.processors.nodes import CONTEXT_FREE, ROW_FREE
from mmspec.vlm.target import TextTarget


class MiddleTarget(TextTarget):
    """The middle model as the inner drafter's target. Its tokens are those of the request and then those of the run.
    `outer` is the request's target. `limits` and `goals` are, per row, the most tokens that a run may reach and the
    number at which it ends. `lead` is 1 if the next pass has to read the token before the root as well, else 0."""

    def __init__(self, parts: Parts, outer: TextTarget):
        ids, kwargs = prompt_for(parts, outer)
        # other processors have a state along the path; the target alone applies them
        known = LogitsProcessorList(p for p in outer.processors.all if type(p) in CONTEXT_FREE + ROW_FREE)
        super().__init__(
            parts,
            ids,
            known,
            StoppingCriteriaList(),
            greedy=outer.greedy,
            pad=0,
            model_kwargs=kwargs,
            inputs=outer.inputs,
        )
        self.outer, self.pads = outer, False
        self.passes, self.lead, self._led = 1, 0, 0
        self.limits: list[int] = []
        self.goals: list[int] | None = None

    @property
    def room(self) -> list[int]:
        return [limit - count for limit, count in zip(self.limits, self.emitted, strict=True)]

    def begin(self, rooms: list[int], run: int) -> None:
        """Begin a run of at least `run` tokens, of which row b has at most `rooms[b]`."""
        self.limits = [count + room for count, room in zip(self.emitted, rooms, strict=True)]
        self.goals = [count + min(run, room) for count, room in zip(self.emitted, rooms, strict=True)]
        self.live = [room > 0 for room in rooms]

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        accepted = super().commit_row(row, depth, failure, run)
        if self.goals is not None and len(self.tokens[row]) >= self.goals[row]:
            self.live[row] = False
        return accepted

    def score(self, draft: Draft) -> Evidence:
        # ids that only the request's target has cannot be embedded; any id may replace them in a draft
        draft = replace(draft, value=torch.where(draft.value < self.parts.vocab_size, draft.value, 0))
        self.passes += 1
        self._led, self.lead = self.lead, 0
        if not self._led:
            return super().score(draft)
        roots = [row.pop() if len(row) > 1 else None for row in self.tokens]
        before = draft.value.new_tensor([[row[-1] % self.parts.vocab_size if row else 0] for row in self.tokens])
        valid = None if draft.valid is None else pad(draft.valid, (1, 0), value=True)
        evidence = super().score(Draft(torch.cat([before, draft.value], 1), _behind(draft.tree), Law("none"), valid))
        for row, root in zip(self.tokens, roots, strict=True):
            row += [] if root is None else [root]
        self._barren = None if self._barren is None else self._barren[:, 1:]
        bad = None if evidence.bad is None else evidence.bad[:, 1:]
        return replace(evidence, scores=evidence.scores[:, 1:], hidden=evidence.hidden[:, 1:], bad=bad)

    def _evidence(self, draft: Draft, logits: Tensor, hidden: Tensor) -> Evidence:
        logits = pad(logits.float(), (0, self.outer.parts.vocab_size - logits.shape[-1]), value=float("-inf"))
        return super()._evidence(draft, mask_placeholders(logits, self.outer), hidden)

    def _keep_paths(self) -> None:
        if self._led:
            self.paths = [[0, *(node + 1 for node in path)] if path else [] for path in self.paths]
        super()._keep_paths()

    def retract(self) -> list[int]:
        """Go back to the request's tokens, the last of which is the next root; return the right tokens a row."""
        right, unread = [], []
        for own, new, alive in zip(self.tokens, self.outer.tokens, self.outer.live, strict=True):
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(own, new, strict=False))))
            right.append(same if alive else len(own))
            unread.append(len(new) - min(same, len(own) - 1, len(new) - 1) if alive else 1)
        live, most = self.outer.live, max(unread)
        self.lead = int(
            most == 2 and all(len(new) > 1 for new, alive in zip(self.outer.tokens, live, strict=True) if alive)
        )
        drop = [
            len(own) - 1 - (len(new) - max(count, 1 + self.lead)) if alive else 0
            for own, new, count, alive in zip(self.tokens, self.outer.tokens, unread, live, strict=True)
        ]
        self._move([-count for count in drop])
        self.tokens = [
            list(new) if alive else own for own, new, alive in zip(self.tokens, self.outer.tokens, live, strict=True)
        ]
        self.live, self.pending = list(live), self.outer.pending
        if most > 1 and not self.lead:
            self._catch_up([count - 1 for count in unread])
        return right

    def _catch_up(self, counts: list[int]) -> None:
        """Read the last `counts[b]` tokens of row b before its root."""
        known = [row[len(row) - 1 - count : len(row) - 1] for row, count in zip(self.tokens, counts, strict=True)]
        value = torch.tensor([row + [0] * (max(counts) - len(row)) for row in known], device=self.device)
        self.score(Draft(value, chain(max(counts) - 1, self.device), Law("none")))
        self._move(counts)

    def _move(self, counts: list[int]) -> None:
        self.cache.advance(counts)
        self.next_position = self.next_position + torch.tensor(counts, device=self.device)


def _behind(tree: Tree) -> Tree:
    """Return the tree with another root before its root."""
    parent = pad(tree.parent + 1, (1, 0))
    parent[:, 1] = 0
    if tree.static:
        return static_tree(parent[0].tolist(), parent.device)
    return dynamic_tree(parent, tree.max_depth + 1, tree.max_rank)
