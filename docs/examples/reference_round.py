"""One round of speculative decoding in plain torch: a chain of drafted tokens, batch size 1, token-wise acceptance.

"Fast Inference from Transformers via Speculative Decoding". Exact: the tokens follow the target's distribution.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Model = Callable[[list[int]], Tensor]  # token ids -> logits [T, V]; row t scores the token after token t
Uniforms = Callable[[str, int], list[float]]  # purpose ("draft", "accept" or "resample"), n -> n numbers in [0, 1)


def sample(weights: Tensor, uniform: float) -> int:
    """Draw a token by inversion. weights: float [V], unnormalised probabilities."""
    total = weights.double().cumsum(-1)
    return int(torch.searchsorted(total, uniform * total[-1], right=True))


def draft(drafter: Model, tokens: list[int], length: int, uniforms: Uniforms) -> tuple[list[int], list[Tensor]]:
    """`length` drafted tokens and the distribution q that each was drawn from, float [V]."""
    drafted: list[int] = []
    laws: list[Tensor] = []
    for uniform in uniforms("draft", length):
        laws.append(drafter(tokens + drafted)[-1].softmax(-1))
        drafted.append(sample(laws[-1], uniform))
    return drafted, laws


def verify(target: Tensor, drafted: list[int], laws: list[Tensor], uniforms: Uniforms) -> tuple[int, int]:
    """The number of accepted tokens and the token that follows them.

    Args:
        target: float [length + 1, V], the probabilities p from one pass over the drafted tokens.
        drafted: the drafted tokens.
        laws: q of each drafted token, float [V].
        uniforms: the source of random numbers.
    """
    accepted = 0
    if drafted:
        accept = uniforms("accept", len(drafted) + 1)[1:]  # the core numbers the root as node 0
        while accepted < len(drafted):
            token = drafted[accepted]
            if accept[accepted] >= min(1.0, float(target[accepted, token] / laws[accepted][token])):
                break
            accepted += 1
    p = target[accepted]
    residual = (p - laws[accepted]).clamp_min(0) if accepted < len(drafted) else p
    return accepted, sample(residual, uniforms("resample", 1)[0])


def step(model: Model, drafter: Model, tokens: list[int], length: int, uniforms: Uniforms) -> list[int]:
    """The tokens that one round adds: the accepted ones and one of the target's. `length` 0 decodes plainly."""
    drafted, laws = draft(drafter, tokens, length, uniforms)
    target = model(tokens + drafted)[-length - 1 :].softmax(-1)  # one target pass scores every drafted token
    accepted, token = verify(target, drafted, laws, uniforms)
    return [*drafted[:accepted], token]
