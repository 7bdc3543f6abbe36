"""The loss of prompt embeddings (PPD): the frozen target reads them behind random tokens of its own answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmspec.core.layers.compat import CACHE
from mmspec.core.layers.layer_plan import as_decoder_masks
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.training.block_objective import draw_anchors
from mmspec.vlm.training.objective import DepthPredictions
from mmspec.vlm.training.objective_wrappers import ObjectiveWrapper
from mmspec.vlm.training.teacher import VlmTeacherBatch
from mmspec.vlm.training.teacher_scores import TeacherScores

_ALIKE = 0.1  # the largest relative difference of the target's states, read through embeddings alone


@dataclass(frozen=True, slots=True)
class PromptObjective(ObjectiveWrapper):
    """The loss of the target's distributions at prompts behind random anchors, compared with those of the text itself.

    The prompts of an anchor see the text up to it and each other, as probes behind the node of a draft do. Prompt i
    (from 0) guesses the token i + 2 after the anchor. Paper: "Parallel Prompt Decoding" (arXiv 2405.18628)."""

    anchors: int = 24  # most of a row

    def __post_init__(self) -> None:
        if self.anchors < 1:
            raise ValueError(f"anchors: expected at least 1, got {self.anchors}; change it")

    def __call__(
        self, drafter: nn.Module, parts: Parts, batch: VlmTeacherBatch, progress: float = 0.0
    ) -> tuple[Tensor, dict[str, float]]:
        """Return loss and notes as Objective does; anchors are drawn from torch's generator."""
        depths = [depth for depth in self.predictions(drafter, parts, batch) if depth.count]
        if depths:
            return self.objective.over(depths, batch.embeds.device)
        # without any answer the loss has no gradient, but still the drafter's parameters
        return sum(0 * weight.sum() for weight in drafter.parameters()), {}

    def predictions(self, drafter: nn.Module, parts: Parts, batch: VlmTeacherBatch) -> list[DepthPredictions]:
        """Return the predictions of every depth at drawn anchors; none without any answer."""
        anchor, drawn = draw_anchors(batch.answer, self.anchors)
        if not bool(drawn.any()):
            return []
        states = self.states(drafter, parts, batch, anchor)
        return [_depth(drafter, parts, batch, anchor, drawn, states, depth) for depth in range(states.shape[2])]

    def states(self, drafter: nn.Module, parts: Parts, batch: VlmTeacherBatch, anchor: Tensor) -> Tensor:
        """Return the target's states [B, A, K, H] at the prompts behind anchors int64 [B, A]."""
        return prompt_states(parts, batch, anchor, drafter.prompts)


@torch.no_grad()
def rank_accuracies(
    objective: PromptObjective, drafter: nn.Module, parts: Parts, batches: Iterable[VlmTeacherBatch], ranks: int = 8
) -> Tensor:
    """Return how often the target's best token has each rank in a drafter's distributions, float64 [K, ranks]. The
    batches are best of the target's own greedy answers."""
    depths = drafter.config.prompts
    counts, places = torch.zeros(depths, ranks, dtype=torch.float64), torch.zeros(depths, 1, dtype=torch.float64)
    for batch in batches:
        for depth in objective.predictions(drafter, parts, batch):
            outputs = depth.whole()
            best = outputs.student.topk(min(ranks, depth.vocabulary), -1).indices
            hits = (best == outputs.teacher.argmax(-1, keepdim=True)).sum(0).cpu()
            counts[depth.depth, : len(hits)] += hits
            places[depth.depth] += depth.count
    return counts / places.clamp(min=1)


def _depth(
    drafter: nn.Module, parts: Parts, batch: VlmTeacherBatch, anchor: Tensor, drawn: Tensor, states: Tensor, depth: int
) -> DepthPredictions:
    """Return the predictions of a depth from states [B, A, K, H] at the prompts of the anchors."""
    source, last = anchor + depth + 1, batch.ids.shape[1] - 1  # the token whose state predicts the guessed token
    inside = drawn & (source < last) & batch.answer.gather(1, (source + 1).clamp(max=last))
    row, column = inside.nonzero(as_tuple=True)
    at = source[row, column]
    truth, token, out = batch.last[row, at], batch.ids[row, at + 1], states[row, column, depth]
    teacher = TeacherScores.of(parts.head, truth, drafter.vocabulary)

    def predict(chosen: Tensor) -> DraftPrediction:
        return drafter.prediction(out[chosen], depth, parts, teacher(chosen), token[chosen], truth[chosen])

    return DepthPredictions(depth, len(row), teacher.width, predict)


def prompt_states(parts: Parts, batch: VlmTeacherBatch, anchor: Tensor, prompts: Tensor) -> Tensor:
    """Return the target's states at `prompts` [K, H] behind anchors int64 [B, A], float [B, A, K, H], with gradients
    for the prompts."""
    position, mask = rows_behind(parts, batch, anchor, len(prompts))
    cache = read_text(parts, batch)
    embeds = prompts.to(batch.embeds).expand(*anchor.shape, -1, -1).flatten(1, 2)
    inputs = {"inputs_embeds": embeds, "position_ids": position, CACHE: cache, "use_cache": True}
    mask = as_decoder_masks(parts.plan, mask, [mask] * len(parts.plan.narrow))
    states = parts.decoder(**inputs, attention_mask=mask).last_hidden_state
    return states.view(*anchor.shape, *prompts.shape)


def rows_behind(parts: Parts, batch: VlmTeacherBatch, anchor: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the positions [B, A * K] or [axes, B, A * K] of K = `count` rows behind each anchor, and their mask."""
    rows, length = batch.ids.shape
    if batch.place is None:
        raise ValueError("teacher: expected the online teacher for prompts, got stored states; use online")
    if parts.plan.stateful or not parts.plan.hides_nothing(length + count):
        raise ValueError(
            "target: expected layers of attention that see the whole text, got layers with states or a "
            "narrow window; train another kind of drafter"
        )
    step = torch.arange(1, count + 1, device=anchor.device)
    place = batch.place.expand(*batch.place.shape[:-2], rows, -1)
    spots = anchor.expand(*place.shape[:-1], -1)
    position = (place.gather(-1, spots)[..., None] + step).flatten(-2)
    return position, _sight(batch, anchor, count).to(parts.dtype)


@torch.no_grad()
def read_text(parts: Parts, batch: VlmTeacherBatch) -> DynamicCache:
    cache = DynamicCache()
    mask = None if batch.padding is None else (~batch.padding).long()
    inputs = dict(inputs_embeds=batch.embeds.to(parts.dtype), position_ids=batch.place, attention_mask=mask)
    states = parts.decoder(**inputs, **{CACHE: cache}, use_cache=True).last_hidden_state
    far, size = (states - batch.last)[batch.answer].norm(), batch.last[batch.answer].norm()
    if not far <= _ALIKE * size:
        raise ValueError(
            "target: expected a decoder that reads pictures through its embeddings alone, got other states "
            "than those of the whole model; train prompts on texts"
        )
    return cache


def _sight(batch: VlmTeacherBatch, anchor: Tensor, count: int) -> Tensor:
    """Return the bias [B, 1, A * K, T + A * K] of prompts: 0 where a prompt sees, else the least finite number."""
    anchors, length = anchor.shape[1], batch.ids.shape[1]
    text = torch.arange(length, device=anchor.device) <= anchor[..., None]  # [B, A, T]
    if batch.padding is not None:
        text = text & ~batch.padding[:, None]
    own = torch.ones(count, count, dtype=torch.bool, device=anchor.device).tril()
    own = torch.block_diag(*[own] * anchors).bool().expand(len(anchor), -1, -1)
    seen = torch.cat([text.repeat_interleave(count, 1), own], -1)[:, None]
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min)
