"""The cost curve of a target: seconds of a pass over w nodes, measured at once instead of along requests."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import nn

from mmspec.core.draft import Draft, Law
from mmspec.core.tree import chain
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.target import TextTarget

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)


@torch.no_grad()
def measure_pass_costs(
    model: nn.Module, widths: Sequence[int] = WIDTHS, *, prompt: int = 64, batch: int = 1, repeats: int = 5
) -> dict[int, float]:
    """Measure the cost of target passes by width, and pad later passes to wider ones where those are cheaper.

    Requests with `drafter="auto"` measure their own passes and need no call of this. Other requests pad their passes only
    after it: a seed has to give its words again, so the widths of their passes must not depend on times measured on the way.
    The passes write scratch slots that nothing commits, and draw no random numbers.

    Args:
        model: The transformers model, wrapped or not.
        widths: Nodes of a row, from 1 up; 1 is measured in any case.
        prompt: Tokens of the prompt behind which passes are measured.
        batch: Rows. Costs hold for this number of rows and this number of the processor's threads.
        repeats: Passes of each width; widths take turns.

    Returns:
        The cost of each width in passes over single nodes.

    Raises:
        ValueError: for numbers below 1, and as `mmspec.generate` does for models that it cannot serve.
    """
    widths = sorted({1, *widths})
    for name, number in (("widths", widths[0]), ("prompt", prompt), ("batch", batch), ("repeats", repeats)):
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")
    target = _prefilled(model, batch, prompt, widths[-1])
    costs = target.pass_costs
    for turn in range(repeats + 1):
        for width in widths:
            seconds = _timed(target, width)
            if turn:  # the first pass of a shape is slower than the next ones
                costs.add(width, seconds)
    costs.settle()
    return {width: cost for width, cost in costs.curve().items() if width in widths}


def _prefilled(model: nn.Module, batch: int, prompt: int, longest: int) -> TextTarget:
    parts = take_apart(unwrapped(model))
    allowed = [token for token in range(min(parts.vocab_size, 4096)) if token not in parts.placeholders]
    ids = torch.tensor(allowed, device=parts.device)[torch.arange(batch * prompt, device=parts.device) % len(allowed)]
    # every row is to be at the same place, so that no row is padded
    ids = ids.view(batch, prompt)
    # a seed, since a request without one draws it
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    request = start(model, seed=0, do_sample=False, max_new_tokens=longest + 2, **given)
    request.step()
    target = request.target
    target.pads = False
    return target


def _timed(target: TextTarget, width: int) -> float:
    """Seconds of a pass over a chain of `width` nodes; reading the best token waits for the device."""
    value = target.pending[:, None].expand(-1, width)
    draft = Draft(value, chain(width - 1, target.device), Law("none" if width == 1 else "deterministic"))
    began = perf_counter()
    target.score(draft).scores[:, -1].argmax(-1).tolist()
    return perf_counter() - began
