"""Muon: an optimizer whose updates of hidden matrices have singular values near 1.

Source: "Muon: An optimizer for hidden layers in neural networks" (Jordan et al., 2024), with updates as large as
AdamW's ("Muon is Scalable for LLM Training", 2025). torch's own Muon multiplies in bf16, which CPUs emulate slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.775, 2.0315  # coefficients of the quintic that pulls singular values towards 1


class Muon(torch.optim.AdamW):
    """AdamW with orthogonalised updates for hidden matrices, float [M, N] each. `weight_decay` and `momentum` are those
    of the matrices, `gain` their learning rate in units of `lr`; `groups`, `lr` and `betas` are AdamW's."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        weight_decay: float,
        groups: list[dict[str, Any]],
        lr: float,
        gain: float,
        betas: tuple[float, float],
        momentum: float = 0.95,
    ) -> None:
        hidden = {"params": list(matrices), "gain": gain, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([hidden, *groups], lr=lr, betas=betas, fused=True)

    @property
    def matrices(self) -> int:
        """The number of hidden matrices; they are the first parameters."""
        return len(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient. Gradients of matrices are then cleared, so that AdamW skips them."""
        hidden = self.param_groups[0]
        lr, momentum = hidden["lr"] * hidden["gain"], hidden["momentum"]
        for matrix in hidden["params"]:
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if not state:
                # AdamW reads the step of every state
                state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(matrix)}
            state["step"] += 1
            mean = state["momentum"].lerp_(matrix.grad, 1 - momentum)
            update = orthogonalised(matrix.grad.lerp(mean, momentum))  # Nesterov momentum
            matrix.mul_(1 - lr * hidden["weight_decay"])
            # as large as AdamW's updates, whose root mean square is about 0.2
            matrix.add_(update, alpha=-0.2 * lr * max(matrix.shape) ** 0.5)
            matrix.grad = None
        super().step(closure)


def orthogonalised(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Return a matrix [M, N] with singular values near 1 (0.7 to 1.2), by Newton-Schulz steps in its own precision."""
    tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if tall else matrix
    result = result / result.norm().clamp(min=1e-7)
    for _ in range(rounds):
        gram = result @ result.T
        result = _A * result + (_B * gram + _C * gram @ gram) @ result
    return result.T if tall else result


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """Return the trainable matrices of linear layers, without those that an embedding shares."""
    tables = {id(item.weight) for item in module.modules() if isinstance(item, nn.Embedding)}
    linear = [item.weight for item in module.modules() if isinstance(item, nn.Linear)]
    return list({id(item): item for item in linear if item.requires_grad and id(item) not in tables}.values())
