"""The loss of a feature drafter, unrolled over the depths it will draft at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.vlm.drafters.eagle import Eagle


@dataclass(frozen=True, slots=True)
class FeatureLoss:
    """Weights of the loss.

    EAGLE's paper trains one step with SmoothL1 on features (1.0) and soft cross-entropy (0.1). Here every depth d is
    trained on the drafter's own features of depth d - 1, as "HASS" and EAGLE-3's training-time test do, because a tree is
    as deep as its weakest level.

    depths: steps unrolled.   decay: weight of depth d is decay ** d.   feature, token: weights of the two terms.
    """

    depths: int = 4
    decay: float = 0.9
    feature: float = 0.2
    token: float = 1.0

    def __post_init__(self) -> None:
        if self.depths < 1 or not 0 < self.decay <= 1 or min(self.feature, self.token) < 0:
            raise ValueError(f"expected depths >= 1, 0 < decay <= 1 and weights >= 0, got {self}")

    def __call__(
        self, drafter: Eagle, head: nn.Module, embeds: Tensor, hidden: Tensor, wanted: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of one batch of right-padded rows and its notes (per depth: how often the top token is the target's).

        embeds, hidden: [B, S, H], the target's merged input embeddings and last hidden states.
        wanted: bool [B, S], tokens of the answers; depth 0 learns token t from the slot that ends at t - 1.
        """
        first = max(int(wanted.any(0).float().argmax()) - 2, 0)  # earlier slots only serve as keys
        truth = hidden[:, first + 1 :]  # slot j predicts h_{j + 1}
        with torch.no_grad():
            teacher = head(truth).float()
        keep = F.pad(wanted[:, first + 2 :], (0, 1))
        loss, notes = truth.new_zeros((), dtype=torch.float32), {}
        for depth, out in enumerate(unroll(drafter, embeds[:, 1:], hidden[:, :-1], first, self.depths)):
            inside = keep.clone()
            inside[:, :depth] = False
            student, target = head(out[inside]).float(), teacher[inside]
            token = -(target.softmax(-1) * student.log_softmax(-1)).sum(-1).mean()
            feature = F.smooth_l1_loss(out[inside].float(), truth[inside].float())
            loss = loss + self.decay**depth * (self.token * token + self.feature * feature)
            notes[f"hit{depth}"] = float((student.argmax(-1) == target.argmax(-1)).float().mean())
        return loss, notes


def unroll(drafter: Eagle, embeds: Tensor, hidden: Tensor, first: int, depths: int) -> list[Tensor]:
    """Predicted features [B, n - first, H] of slots first.. at each depth, attending as in drafting.

    A slot at depth d reads the drafter's own feature of the slot before it at depth d - 1; it attends the true slots up to
    d before it, and its own drafted ancestors in between.   embeds, hidden: [B, n, H] of all slots.
    """
    rotary = drafter.rotary(embeds.shape[1], embeds.device, embeds.dtype)[None]
    fused = drafter.fuse(embeds, hidden)
    query, key, value = drafter.heads(fused, rotary)
    scale = query.shape[-1] ** -0.5
    slot = torch.arange(embeds.shape[1], device=embeds.device)
    outputs, drafted = [], []  # drafted: keys and values of depth 1, 2, ... over the slots first..
    for depth in range(depths):
        if depth:
            before = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
            fused = drafter.fuse(embeds[:, first:], before)
            query, k, v = drafter.heads(fused, rotary[:, first:])
            drafted.append((k, v))
        else:
            query, fused = query[:, :, first:], fused[:, first:]
        hides = slot > (slot[first:, None] - depth)
        scores = (query @ key.transpose(-1, -2) * scale).masked_fill(hides, -torch.inf)
        own = [_back(k, depth - 1 - t) for t, (k, _) in enumerate(drafted)]
        diagonal = [(query * k).sum(-1, keepdim=True) * scale for k in own]
        weight = torch.cat([scores, *diagonal], -1).float().softmax(-1).to(value.dtype)
        attended = weight[..., : len(slot)] @ value
        for t, (_, v) in enumerate(drafted):
            attended = attended + weight[..., len(slot) + t, None] * _back(v, depth - 1 - t)
        outputs.append(drafter.finish(fused, attended))
    return outputs


def _back(x: Tensor, steps: int) -> Tensor:
    """Row j of the result is row j - steps of x [B, heads, m, dim] (zeros before the start)."""
    return F.pad(x, (0, 0, steps, 0))[:, :, : x.shape[2]]
