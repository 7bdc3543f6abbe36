"""Lessons of a drafter from the requests that it has served: the places where the target rejected its drafts."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import TemperatureLogitsWarper

from mmspec.core.drafting.pair_state import PendingFeatures
from mmspec.core.round.draft import Draft, Evidence, Verdict, expand_tree
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.target import TextTarget

_TOP = 64  # tokens of a stored target distribution; the others are one rest


@dataclass(frozen=True, slots=True)
class WrongPlace:
    """A draft token that the target rejected, behind the last token that it accepted."""

    slot: int  # the index of the answer's pair that predicts the token
    depth: int  # the level of the token in its draft, from 0
    column: Tensor  # int64 [k], the target's likeliest tokens as columns of the drafter's vocabulary
    share: Tensor  # float32 [k], their probabilities at the temperature of the request


@dataclass(frozen=True, slots=True)
class Lesson:
    """An answered request, as the drafter read it: a few rows for a picture, and no tokens of pictures."""

    prompt: PromptSlots  # slots, as a batch of a single row
    hidden: Tensor  # float [n, F], the target's states of the answer's pairs
    ids: Tensor  # int64 [n], the token of each pair
    wrong: Sequence[WrongPlace]
    temperature: float  # 1 for a greedy request


class RequestRecord:
    """The rounds of a request. It does not keep the request alive, so an abandoned request ends."""

    def __init__(self, target: TextTarget, prompt: PromptSlots, vocabulary: Tensor | None):
        self.target, self.prompt, self.vocabulary = weakref.ref(target), prompt, vocabulary
        self.pairs, self.counts = PendingFeatures(), [0] * target.batch
        self.wrong: list[list[WrongPlace]] = [[] for _ in range(target.batch)]
        warps = [warp for warp in target.processors.free if isinstance(warp, TemperatureLogitsWarper)]
        self.temperature = float(warps[0].temperature) if warps and not target.greedy else 1.0

    @property
    def is_open(self) -> bool:
        target = self.target()
        return target is not None and not target.done

    @torch.no_grad()
    def note(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Store the accepted pairs of a round, and the target's distribution where it rejected a draft."""
        below = expand_tree(draft.tree.parent, draft.batch) == verdict.node[:, None]
        below = below if draft.valid is None else below & draft.valid
        wrong = below[:, 1:].any(1).tolist()
        row = torch.arange(draft.batch, device=draft.value.device)
        scores = evidence.scores[row, verdict.node]
        scores = scores if self.vocabulary is None else scores[:, self.vocabulary]
        share, column = scores.softmax(-1).topk(min(_TOP, scores.shape[-1]), -1)
        depths = verdict.depth.tolist()
        for b, alive in enumerate(target.live):
            if alive and wrong[b] and self.counts[b]:
                place = self.counts[b] - 1 + depths[b]
                self.wrong[b].append(WrongPlace(place, depths[b], column[b].clone(), share[b].clone()))
        self.pairs.note(target.paths, draft, evidence, verdict)
        self.counts = [count + len(path) for count, path in zip(self.counts, target.paths, strict=True)]

    def lessons(self) -> list[Lesson]:
        if not len(self.pairs):
            return []
        hidden, ids, counts = self.pairs.take()
        rows = range(len(counts))
        return [
            Lesson(
                _row(self.prompt, b),
                hidden[b, : counts[b]].clone(),
                ids[b, : counts[b]].clone(),
                self.wrong[b],
                self.temperature,
            )
            for b in rows
        ]


def lesson_loss(drafter: ShapedDrafter, parts: Parts, lessons: Sequence[Lesson]) -> Tensor:
    """Return the mean of KL(p || q) over the wrong places, at least a place a lesson, a scalar with gradients. Tokens
    outside of a stored distribution count together, so it is the divergence of a coarser partition. The slots of
    prompts are constants."""
    losses = []
    with torch.autocast(parts.device.type, torch.bfloat16, enabled=parts.dtype != torch.float32):
        for logits, places in wrong_predictions(drafter, parts, lessons):
            column, share = (torch.stack([getattr(place, name) for place in places]) for name in ("column", "share"))
            losses.append(coarse_divergence(logits, column, share))
    return torch.cat(losses).mean()


def wrong_predictions(
    drafter: ShapedDrafter, parts: Parts, lessons: Sequence[Lesson]
) -> Iterator[tuple[Tensor, list[WrongPlace]]]:
    """Yield the drafter's log-weights at the wrong places of each depth, float32 [n, V], and the places. They are those
    that the tokens were drafted from, at the temperature of the request, as long as weights do not change."""
    slots, view, first = _joined(drafter, parts, lessons)
    starts = [lesson.prompt.attend.shape[1] - first for lesson in lessons]
    places = [(place, n, starts[n] + place.slot) for n, lesson in enumerate(lessons) for place in lesson.wrong]
    for depth, out in enumerate(drafter.unroll(slots, view, first, 1 + max(place.depth for place, _, _ in places))):
        chosen = [entry for entry in places if entry[0].depth == depth]
        if chosen:
            wrong, rows, columns = (list(column) for column in zip(*chosen, strict=True))
            logits = drafter.own_logits(out[rows, columns], depth + 1, parts.head)
            yield logits / logits.new_tensor([[lessons[n].temperature] for n in rows]), wrong


@torch.no_grad()
def mean_likelihood(drafter: ShapedDrafter, parts: Parts, lessons: Sequence[Lesson], depths: int = 4) -> float:
    """Return the mean probability that the drafter gives the tokens of the answers, over all tokens and at most
    `depths` depths."""
    shares = []
    with torch.autocast(parts.device.type, torch.bfloat16, enabled=parts.dtype != torch.float32):
        slots, view, first = _joined(drafter, parts, lessons)
        for depth, out in enumerate(drafter.unroll(slots, view, first, depths)):
            for row, lesson in enumerate(lessons):
                start, token = lesson.prompt.attend.shape[1] - first, lesson.ids[depth + 1 :]
                law = drafter.own_logits(out[row, start + depth : start + len(lesson.ids) - 1], depth + 1, parts.head)
                if drafter.vocabulary is not None:  # tokens outside of it never stand in a draft
                    column = torch.searchsorted(drafter.vocabulary, token).clamp(max=len(drafter.vocabulary) - 1)
                    inside = drafter.vocabulary[column] == token
                    law, token = law[inside], column[inside]
                shares.append(law.softmax(-1).gather(-1, token[:, None]))
    return float(torch.cat(shares).mean())


def coarse_divergence(logits: Tensor, column: Tensor, share: Tensor) -> Tensor:
    """Return KL(p || q) of n distributions over k tokens and the rest of the vocabulary, float32 [n]. `logits` are the
    log-weights of q, float32 [n, V], and `share` the probabilities under p of tokens `column`, float32 and int64 [n,
    k]."""
    inside = logits.log_softmax(-1).gather(-1, column)
    loss = torch.xlogy(share, share) - share * inside.clamp(min=-1e4)
    if column.shape[-1] == logits.shape[-1]:
        return loss.sum(-1)
    rest = (1 - share.sum(-1)).clamp(min=0)
    others = logits.scatter(-1, column, -torch.inf).logsumexp(-1) - logits.logsumexp(-1)
    return loss.sum(-1) + torch.xlogy(rest, rest) - rest * others


def _row(slots: PromptSlots, row: int) -> PromptSlots:
    count, alone = int(slots.count[row]), {}
    for field in fields(slots):
        value = getattr(slots, field.name)
        if value is not None:
            per_slot = field.name not in ("count", "next_position", "last_context")
            alone[field.name] = (value[row : row + 1, :count] if per_slot else value[row : row + 1]).detach().clone()
    return replace(slots, **alone)


def _joined(drafter: ShapedDrafter, parts: Parts, lessons: Sequence[Lesson]) -> tuple[PromptSlots, PromptView, int]:
    """Return the slots of prompts and answers, the answers' pairs, and the first slot of an answer."""
    rows = []
    for lesson in lessons:
        prompt, count = lesson.prompt, len(lesson.ids)
        embeds, hidden = drafter.embeddings(lesson.ids[None], parts).float(), lesson.hidden[None].float()
        context = None if prompt.last_context is None else prompt.last_context[:, None].float()
        attend, carry = drafter.fuse(embeds, hidden, context)
        ahead = torch.arange(count, device=embeds.device)
        contexts = None if context is None else torch.cat([prompt.context, context.expand(-1, count, -1)], 1)
        rows.append(
            (
                torch.cat([prompt.attend.to(attend.dtype), attend], 1)[0],
                torch.cat([prompt.carry.to(carry.dtype), carry], 1)[0],
                torch.cat([prompt.position[0], prompt.next_position + ahead]),
                torch.cat([torch.full_like(prompt.position[0], -1), ahead]),
                embeds[0],
                hidden[0],
                None if contexts is None else contexts[0],
            )
        )
    attend, carry, position, origin, embeds, hidden, context = (
        None if column[0] is None else pad_sequence(column, batch_first=True) for column in zip(*rows, strict=True)
    )
    counts = torch.tensor([len(row[0]) for row in rows], device=attend.device)
    slots = PromptSlots(attend, carry, position, counts, counts, origin, context)
    view = PromptView(embeds, hidden, torch.zeros_like(embeds[..., 0], dtype=torch.long))
    return slots, view, min(lesson.prompt.attend.shape[1] for lesson in lessons)
