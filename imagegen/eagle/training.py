"""Training of an image drafter: the teacher's pass over images, and the distances to its states and distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.model import FeatureModel
from mmspec.io.validation import Range, Share, Size, check_fields


@dataclass(slots=True)
class ImageTeacherBatch:
    """The teacher's view of a batch: R = C * B rows, where C is 2 with the unconditional branch, which comes last."""

    prompt: Tensor  # float [R, P, H], the prompt's states
    padding: Tensor | None  # bool [R, P]
    value: Tensor  # int64 [R, T - 1], the values fed
    state: Tensor  # float [R, T - 1, H], the states behind each of them
    logits: Tensor  # float32 [R, T - 1, V], the target's raw log-weights of the value after each


@torch.no_grad()
def teacher_pass(model: FeatureModel, condition: object, values: Tensor, paired: bool) -> ImageTeacherBatch:
    """Run the target over images, with all their T values int64 [B, T], forced values included."""
    total = model.geometry.total
    if values.dim() != 2 or values.shape[1] != total:
        raise ValueError(
            f"values: expected [B, {total}], as the model generates, got {list(values.shape)}; tokenise the "
            "images at the model's resolution"
        )
    copies = 2 if paired else 1
    cache = model.cache(model.layers, 2 * total, copies=copies)
    scored, slots = model.prefill(condition, cache, paired)
    if scored.prompt_hidden is None:
        raise ValueError(
            f"target: expected a model that returns its prompt's hidden states, got {model.name}; use another target"
        )
    cache.advance(slots)
    value = values[:, :-1].to(model.device).repeat(copies, 1)
    count = value.shape[1]
    index = torch.arange(count, device=value.device).expand_as(value)
    causal = torch.ones(1, count, count, dtype=torch.bool, device=value.device).tril()
    seen = model.forward(value, index, cache.bias(causal, model.dtype), cache)
    padding = None if cache.hidden is None else cache.hidden[:, :slots]
    return ImageTeacherBatch(scored.prompt_hidden, padding, value, seen.hidden, seen.logits)


Batches = Callable[[int], tuple[object, Tensor]]


@dataclass(frozen=True, slots=True)
class EagleLoss:
    """The loss feature * SmoothL1(states) + words * cross-entropy, summed over depths d with weights decay ** d. The
    defaults are LANTERN's training. `guided_share` of `words` compares guided distributions, uncond + s (cond - uncond)
    with s = `guidance`. The public code's coupled mode writes cond + s (cond - uncond), which is scale s + 1 here."""

    feature: Annotated[float, Range(0)] = 1.0
    words: Annotated[float, Range(0)] = 0.1
    depths: Size = 1  # steps unrolled on the drafter's own states ("HASS", EAGLE-3's training-time test); 1 is EAGLE's
    decay: Annotated[float, Range(above=0, most=1)] = 1.0
    noise: Annotated[float, Range(0)] = 0.2  # width of uniform noise on input states, times 512 / length as in the code
    unconditional: Share = 0.1  # weight of that branch; the published 10 % of replaced conditions
    guided_share: Share = 0.0
    guidance: float = 3.0

    __post_init__ = check_fields

    @property
    def paired(self) -> bool:
        return self.unconditional > 0 or self.guided_share > 0


def image_eagle_loss(
    drafter: ImageEagle, model: FeatureModel, batches: Batches, loss: EagleLoss, seed: int = 0
) -> Callable[[int], tuple[Tensor, dict[str, float]]]:
    """Return the loss of each training step, a pure function of the step and the weights, so that runs can resume.
    `batches` gives the condition and the values int64 [B, T] of a step. The notes `overlap0`, `overlap1`... per depth
    are the mean of sum min(p, q), the acceptance rate there, guided where these are trained."""

    def of(step: int) -> tuple[Tensor, dict[str, float]]:
        condition, values = batches(step)
        batch = teacher_pass(model, condition, values, loss.paired)
        noise = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return eagle_distance(unrolled_states(drafter, model, batch, loss, noise), model, batch, loss)

    return of


def unrolled_states(
    drafter: ImageEagle, model: FeatureModel, batch: ImageTeacherBatch, loss: EagleLoss, noise: torch.Generator
) -> list[Tensor]:
    """Return the predicted states [R, T - 1, H] at each depth, computed as in drafting. The first d places of depth d
    are unused. Place i holds the pair of value i and predicts the state behind it."""
    rows, count, _ = batch.state.shape
    before = batch.prompt.shape[1] - 1
    states = torch.cat([batch.prompt, batch.state[:, :-1]], 1)
    if loss.noise:
        drawn = torch.rand(states.shape, generator=noise).to(states)
        states = states + (drawn - 0.5) * loss.noise * 512 / states.shape[1]
    value = F.pad(batch.value, (before, 0))  # the prompt's slots embed value 0
    embeds = drafter.embed(model, value)
    turned = drafter.rotary(model.geometry, 0)[:count]
    turned = torch.cat([turned.new_zeros(before, *turned.shape[1:]), turned])[None]
    hidden = None if batch.padding is None else F.pad(batch.padding[:, :before], (0, count))
    fused = drafter.fuse(embeds, states)

    def again(own: Tensor) -> tuple[Tensor, Tensor]:
        u = drafter.fuse(embeds[:, before:], own)
        return u, u

    return drafter.layer.unroll(fused, fused, turned, before, loss.depths, again, hidden)


def eagle_distance(
    outputs: list[Tensor], model: FeatureModel, batch: ImageTeacherBatch, loss: EagleLoss
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss and the notes of predicted states [R, T - 1, H] at each depth."""
    total, notes = batch.state.new_zeros(()), {}
    for depth, out in enumerate(outputs):
        out, truth, teacher = out[:, depth:], batch.state[:, depth:], batch.logits[:, depth:]
        student = model.logits(out)
        value = loss.feature * _branch_mean(F.smooth_l1_loss(out, truth, reduction="none").mean(-1), loss)
        plain, overlap = _cross_entropy(student, teacher)
        words = _branch_mean(plain, loss)
        if loss.guided_share:
            guided, overlap = _cross_entropy(
                _guided_logits(student, loss.guidance), _guided_logits(teacher, loss.guidance)
            )
            words = (1 - loss.guided_share) * words + loss.guided_share * guided.mean()
        total = total + loss.decay**depth * (value + loss.words * words)
        notes[f"overlap{depth}"] = float(overlap.mean())
    return total, notes


def _branch_mean(places: Tensor, loss: EagleLoss) -> Tensor:
    """Return the mean over places [R, n], weighted by branch."""
    if not loss.paired:
        return places.mean()
    cond, uncond = places.chunk(2)
    return torch.lerp(cond.mean(), uncond.mean(), loss.unconditional)


def _cross_entropy(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Return per place the cross-entropy of the drafter's distribution against the target's, and the overlap of both."""
    p, log_q = teacher.softmax(-1), student.log_softmax(-1)
    with torch.no_grad():
        overlap = torch.minimum(p, log_q.exp()).sum(-1)
    return -(p * log_q).sum(-1), overlap


def _guided_logits(logits: Tensor, scale: float) -> Tensor:
    cond, uncond = logits.chunk(2)
    return uncond + scale * (cond - uncond)
