"""Muon: hidden matrices move in directions whose singular values are all about one.

Source: "Muon: An optimizer for hidden layers in neural networks" (Jordan et al., 2024), with updates as large as AdamW's
("Muon is Scalable for LLM Training", 2025). torch's own does its products in bf16, which a CPU has to emulate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.775, 2.0315  # of the quintic that draws singular values towards one


class Muon(torch.optim.AdamW):
    """AdamW in which `matrices` float [M, N] take orthogonalised steps; `groups` are AdamW's own.

    weight_decay: of the matrices.   gain: learning rate of the matrices in units of AdamW's.
    """

    def __init__(self, matrices: Iterable[Tensor], weight_decay: float, groups: list[dict[str, Any]], lr: float, gain: float,
                 betas: tuple[float, float], momentum: float = 0.95) -> None:  # fmt: skip
        hidden = {"params": list(matrices), "gain": gain, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([hidden, *groups], lr=lr, betas=betas, fused=True)

    @property
    def matrices(self) -> int:
        """How many of its parameters, the first ones, take orthogonalised steps."""
        return len(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Moves every parameter that has a gradient; those of matrices are used up, so that AdamW passes them over."""
        hidden = self.param_groups[0]
        lr, momentum = hidden["lr"] * hidden["gain"], hidden["momentum"]
        for matrix in hidden["params"]:
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if not state:
                # AdamW asks every state for its step
                state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(matrix)}
            state["step"] += 1
            mean = state["momentum"].lerp_(matrix.grad, 1 - momentum)
            update = orthogonalised(matrix.grad.lerp(mean, momentum))  # Nesterov's look ahead
            matrix.mul_(1 - lr * hidden["weight_decay"])
            # as large as AdamW's updates, whose root mean square is about 0.2
            matrix.add_(update, alpha=-0.2 * lr * max(matrix.shape) ** 0.5)
            matrix.grad = None
        super().step(closure)


def orthogonalised(matrix: Tensor, rounds: int = 5) -> Tensor:
    """The matrix float [M, N] with singular values near one (0.7 to 1.2), by Newton-Schulz rounds in its own precision."""
    tall = matrix.shape[0] > matrix.shape[1]
    made = matrix.T if tall else matrix
    made = made / made.norm().clamp(min=1e-7)
    for _ in range(rounds):
        gram = made @ made.T
        made = _A * made + (_B * gram + _C * gram @ gram) @ made
    return made.T if tall else made


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """The trainable matrices of linear layers, but for those that are an embedding's too."""
    tables = {id(one.weight) for one in module.modules() if isinstance(one, nn.Embedding)}
    linear = [one.weight for one in module.modules() if isinstance(one, nn.Linear)]
    return list({id(one): one for one in linear if one.requires_grad and id(one) not in tables}.values())
