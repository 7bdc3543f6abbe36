"""transformers' assisted sampling."""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor

from mmspec.certify.drawn import Given


def transformers(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The accept step of `model.generate(assistant_model=..., do_sample=True)` in the installed transformers, row by row, as
    it takes one.

    Its tests come from torch.rand_like and its next token from torch.multinomial; uniforms take their places, so that
    what runs is its own code and what is certified holds for every draw.
    """
    from transformers.generation.utils import _speculative_sampling as accept

    # older versions also ask whether the draft ends the text, where they take no bonus token
    ended = {"is_done_candidate": False} if "is_done_candidate" in signature(accept).parameters else {}
    answers, length = [], tokens.shape[1]
    for row in range(len(tokens)):
        given = torch.cat((uniforms[row, :length], uniforms[row, -1:]))
        with Given(given):
            kept, count = accept(tokens[row : row + 1], q[row : row + 1].log(), length, p[row : row + 1].log(), **ended)
        answers.append((int(count), int(kept[0, -1])))
    return tuple(torch.tensor(column) for column in zip(*answers, strict=True))
