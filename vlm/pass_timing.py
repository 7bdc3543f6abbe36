"""The measured cost curve of a target: the seconds of a pass by its number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import nn

from mmspec.core.round.draft import Draft, Law
from mmspec.core.round.tree import chain
from mmspec.vlm.admission import take_apart
from mmspec.vlm.api import start
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.target import TextTarget

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)


@torch.no_grad()
def measure_pass_costs(
    model: nn.Module, widths: Sequence[int] = WIDTHS, *, prompt: int = 64, batch: int = 1, repeats: int = 5
) -> dict[int, float]:
    """Measure the cost of target passes by width, and pad later passes to a greater width if that is cheaper.

    Requests with `drafter="auto"` measure their own passes and do not need this function. Other requests pad their passes
    only after it has run: a seed must reproduce its output, so their widths must not depend on times measured meanwhile.
    The passes write scratch slots that are never committed, and draw no random numbers.

    Args:
        model: The transformers model, with or without wrappers.
        widths: Numbers of nodes in a row, at least 1; width 1 is always measured.
        prompt: The number of prompt tokens before the measured passes.
        batch: The number of rows. The costs are valid for this number of rows and the current number of CPU threads.
        repeats: The number of passes of each width; the widths take turns.

    Returns:
        The cost of each width, in units of a pass over a single node.

    Raises:
        ValueError: A number is below 1, or `mmspec.generate` does not support the model.
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
            if turn:  # the first pass of a shape is slower
                costs.add(width, seconds)
    costs.fix_widths()
    return {width: cost for width, cost in costs.curve().items() if width in widths}


def _prefilled(model: nn.Module, batch: int, prompt: int, longest: int) -> TextTarget:
    parts = take_apart(unwrapped(model))
    allowed = [token for token in range(min(parts.vocab_size, 4096)) if token not in parts.placeholders]
    ids = torch.tensor(allowed, device=parts.device)[torch.arange(batch * prompt, device=parts.device) % len(allowed)]
    # rows of equal length need no padding
    ids = ids.view(batch, prompt)
    # without a seed, the request would draw a number from torch's global generator
    inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    request = start(model, seed=0, do_sample=False, max_new_tokens=longest + 2, **inputs)
    request.step()
    target = request.target
    target.pads = False
    return target


def _timed(target: TextTarget, width: int) -> float:
    """Return the seconds of a pass over a chain of `width` nodes; reading the best token waits for the device."""
    value = target.pending[:, None].expand(-1, width)
    draft = Draft(value, chain(width - 1, target.device), Law("none" if width == 1 else "deterministic"))
    began = perf_counter()
    target.score(draft).scores[:, -1].argmax(-1).tolist()
    return perf_counter() - began
