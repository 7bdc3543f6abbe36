"""AdamW for most parameters and torch's Muon for hidden matrices, as one optimizer.

Source: "Muon: An optimizer for hidden layers in neural networks" (Jordan et al., 2024), with updates as large as AdamW's
("Muon is Scalable for LLM Training", 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.AdamW):
    """AdamW over `groups`, and Muon over the hidden matrices, float [M, N], whose learning rate is `gain` times `lr`."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        weight_decay: float,
        groups: list[dict[str, Any]],
        lr: float,
        gain: float,
        betas: tuple[float, float],
    ) -> None:
        hidden = {"params": list(matrices), "gain": gain, "weight_decay": weight_decay}
        super().__init__([hidden, *groups], lr=lr, betas=betas, fused=True)

    @property
    def matrices(self) -> int:
        """The number of hidden matrices; they are the first parameters."""
        return len(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient. Gradients of matrices are then cleared, so that AdamW skips them."""
        hidden = self.param_groups[0]
        if moved := [matrix for matrix in hidden["params"] if matrix.grad is not None]:
            lr, decay = hidden["lr"] * hidden["gain"], hidden["weight_decay"]
            muon = torch.optim.Muon(moved, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            muon.state = self.state  # saved and loaded with the states of AdamW
            muon.step()
        for matrix in moved:
            matrix.grad = None
            self.state[matrix].setdefault("step", torch.zeros(()))  # AdamW reads the step of every loaded state
        super().step(closure)


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """Return the trainable matrices of linear layers, without those that an embedding shares."""
    tables = {id(item.weight) for item in module.modules() if isinstance(item, nn.Embedding)}
    linear = [item.weight for item in module.modules() if isinstance(item, nn.Linear)]
    return list({id(item): item for item in linear if item.requires_grad and id(item) not in tables}.values())
