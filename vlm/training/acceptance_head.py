"""Training of the acceptance head of SpecDec++ on the states of a frozen drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.drafting.layer import DraftLayer
from mmspec.io.validation import Positive, Range, Size, check_fields
from mmspec.training.loop import update
from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.feature_drafter import FeatureDrafter
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead
from mmspec.vlm.training.teacher import VlmTeacherBatch


@dataclass(slots=True)
class AcceptanceSamples:
    """The tokens that a drafter drew at a depth."""

    feature: Tensor  # float [n, H], the drafter's states after the tokens
    label: Tensor  # float32 [n], their probabilities of acceptance


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """The settings of an acceptance head's training; the defaults follow the public recipe."""

    depths: Size = 6  # labelled levels of a draft
    reject_weight: Positive = 6.0  # of rejection in the loss
    replaced: Annotated[float, Range(0, below=1)] = 0.15  # of drawn tokens, by unlabelled tokens of the text
    temperature: Positive = 1.0  # of the drafts

    __post_init__ = check_fields


def acceptance_label(target: Tensor, drafter: Tensor, token: Tensor) -> Tensor:
    """Return the probability that the target accepts a drawn token x, min(1, p(x) / q(x)), float32 [...]. `target` and
    `drafter` are the log-weights of p and q, float [..., V]."""
    at = token[..., None]
    ratio = target.log_softmax(-1).gather(-1, at) - drafter.log_softmax(-1).gather(-1, at)
    return ratio[..., 0].exp().clamp(max=1.0)


def acceptance_loss(logits: Tensor, label: Tensor, reject_weight: float = 6.0) -> Tensor:
    """Return sum_i [s_i (-log P(accept)) + w (1 - s_i) (-log P(reject))] / sum_i [s_i + w (1 - s_i)]. `logits` is
    float32 [..., 2], for reject and accept; `label` s is float32 [...], negative for tokens without a label."""
    judged = label >= 0
    accept, reject = label.clamp(min=0) * judged, reject_weight * (1 - label) * judged
    log = logits.log_softmax(-1)
    loss = -(accept * log[..., 1] + reject * log[..., 0]).sum()
    return loss / (accept + reject).sum().clamp(min=1e-6)


@torch.no_grad()
def sample_acceptance(
    drafter: FeatureDrafter,
    parts: Parts,
    batch: VlmTeacherBatch,
    settings: AcceptanceSettings,
    generator: torch.Generator,
) -> list[AcceptanceSamples]:
    """Draw draft tokens at every answer token and return the drafter's states and labels per depth. Drafts start at
    every token, as in the drafter's training. A token drawn after a token that differs from the text has no label,
    because the target's scores there are unknown, and is excluded. The public code draws every token after the text
    alone and then lets the drafter read the draws in sequence; here labels match the tokens that were read."""
    if not (isinstance(drafter, FeatureDrafter) and isinstance(drafter.layer, DraftLayer)):
        raise ValueError(
            f"drafter: expected a drafter with a single decoder layer, got {drafter.name!r}; use another drafter"
        )
    view = drafter.embedded(batch.prompt_view(parts), batch.ids)
    slots = drafter.read(view)
    after = (slots.origin + 1).clamp(max=batch.ids.shape[1] - 1)  # the token whose embedding a slot reads
    wanted = batch.answer.gather(1, after.clamp(min=0)) & (slots.origin >= 0)
    # slots further left only serve as keys
    first = max(int(wanted.any(0).float().argmax()) - settings.depths, 0)
    origin, after, wanted = slots.origin[:, first:], after[:, first:].clamp(min=0), wanted[:, first:]
    context = None if slots.context is None else slots.context[:, first:]
    text = batch.ids.gather(1, after)
    behind = origin.clamp(min=0)[..., None].expand(-1, -1, batch.last.shape[-1])
    target = parts.head(batch.last.gather(1, behind)).float()
    on_text = torch.ones_like(wanted)  # whether the draft before a slot equals the text
    labels: list[Tensor] = []

    def draw(own: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal on_text
        depth = len(labels) + 1
        scores = drafter.logits(own, depth, parts.head)
        scores[..., list(parts.placeholders)] = -torch.inf
        scores = scores / settings.temperature
        token = torch.multinomial(scores.softmax(-1).flatten(0, 1), 1, generator=generator).view_as(text)
        label = acceptance_label(target / settings.temperature, scores, token)
        replaced = torch.rand(token.shape, generator=generator, device=token.device) < settings.replaced
        judged = wanted & on_text & ~replaced & (origin.roll(depth, 1) == origin - depth)  # it crossed text alone
        judged[:, :depth] = False
        labels.append(torch.where(judged, label, -1.0))
        token = torch.where(replaced, text, token)
        on_text = F.pad(on_text & (token == text), (1, 0))[:, :-1]
        return drafter.fuse(drafter.embeddings(token, parts), own, context)

    outputs = drafter.unroll_with(slots, first, settings.depths + 1, draw)[1:]
    samples = []
    for out, label in zip(outputs, labels, strict=True):
        row, slot = (label >= 0).nonzero(as_tuple=True)
        samples.append(AcceptanceSamples(out[row, slot], label[row, slot]))
    return samples


def train_acceptance(
    drafter: FeatureDrafter,
    model: nn.Module,
    teacher_batches: Callable[[int], VlmTeacherBatch],
    schedule: Schedule,
    settings: AcceptanceSettings = AcceptanceSettings(),
    *,
    head: AcceptanceHead | None = None,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float]], None] = lambda step, notes: None,
) -> AcceptanceHead:
    """Train an acceptance head, a new head for None, for a drafter and a target, which both remain unchanged. `on_step`
    gets the step (from 1), and the loss, mean label and mean verdict."""
    parts = take_apart(model)
    drafter.check(parts)
    device = parts.device
    head = AcceptanceHead(AcceptanceConfig(drafter.config.hidden_size)) if head is None else head
    head = head.to(device).train().requires_grad_(True)
    optimizer = schedule.optimizer(head)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        generator = torch.Generator(device).manual_seed(seed + step)
        samples = sample_acceptance(drafter, parts, teacher_batches(step), settings, generator)
        feature, label = (torch.cat([getattr(part, name) for part in samples]) for name in ("feature", "label"))
        logits = head(feature.float())
        verdict = logits.detach().softmax(-1)[..., 1].mean()
        loss = acceptance_loss(logits, label, settings.reject_weight)
        return loss, {"label": float(label.mean()), "verdict": float(verdict)}

    for step in range(schedule.steps):
        on_step(step + 1, update(head, step, loss_of, schedule, optimizer))
    return head.eval().requires_grad_(False)
