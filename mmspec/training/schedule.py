from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from mmspec.training.muon import Muon, hidden_matrices


@dataclass(frozen=True, slots=True)
class Schedule:
    """AdamW with a linear warm-up and a cosine, linear or no decay to `final_lr` times `lr`."""

    steps: int
    lr: float = 1e-3  # after the warm-up
    warmup: int = 100  # steps
    decay: Literal["cosine", "linear", "none"] = "cosine"
    final_lr: float = 0.02  # at the end, in units of `lr`
    betas: tuple[float, float] = (0.9, 0.98)  # decay rates of AdamW's moments
    weight_decay: float = 0.01  # of matrices
    clip: float = 1.0  # bound of the gradients; 0 for none
    clip_by: Literal["norm", "value"] = "norm"  # the norm of all gradients or each value (as in ViSpec and FLASH)
    again: int = 0  # the step at which warm-up and decay start a second time; 0 for never
    muon: float = 0.0  # learning rate of hidden matrices under Muon in units of `lr`; 0 trains them with AdamW

    def __post_init__(self) -> None:
        if not 0 <= self.again < self.steps:
            raise ValueError(
                f"again: expected a step before the last of {self.steps} or 0, got {self.again}; change it"
            )
        if self.steps < 1 or self.lr <= 0 or min(self.warmup, self.clip, self.muon) < 0:
            raise ValueError(
                f"expected steps >= 1, lr > 0, warmup >= 0, clip >= 0 and muon >= 0, got {self.steps}, {self.lr}, "
                f"{self.warmup}, {self.clip} and {self.muon}; change them"
            )
        if self.decay not in ("cosine", "linear", "none") or self.clip_by not in ("norm", "value"):
            raise ValueError(f"expected decay cosine, linear or none and clip_by norm or value, got {self}")

    def lr_at(self, step: int) -> float:
        end = self.again or self.steps
        if self.again and step >= self.again:
            step, end = step - self.again, self.steps - self.again
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, end - self.warmup))
        left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "none": 1.0}[self.decay]
        return self.lr * (self.final_lr + (1 - self.final_lr) * left)

    def optimizer(self, module: nn.Module) -> torch.optim.AdamW:
        """Return AdamW over the trainable parameters, with weight decay on matrices only, or Muon where `muon` is set."""
        matrices = hidden_matrices(module) if self.muon else []
        hidden = {id(p) for p in matrices}
        trained = [p for p in module.parameters() if p.requires_grad and id(p) not in hidden]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        if self.muon:
            return Muon(matrices, self.weight_decay, groups, self.lr, self.muon, self.betas)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, fused=True)

    def clip_gradients(self, module: nn.Module) -> None:
        if self.clip:
            bound = nn.utils.clip_grad_norm_ if self.clip_by == "norm" else nn.utils.clip_grad_value_
            bound(module.parameters(), self.clip)
