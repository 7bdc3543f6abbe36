"""Drafting with a published text model on a GPU: SmolLM2 on real prompts of nine kinds, with its EAGLE-3 drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mmspec import zoo
from mmspec.evaluate.machine.measure import comparison_rows
from mmspec.evaluate.machine.trained_models import BASELINES, decoding_runners
from mmspec.evaluate.vlm.requests import REAL_TASKS
from mmspec.run.vlm_requests import encode
from mmspec.zoo.files.fetched import is_fetched

NAME, DRAFTER = "smollm2", "smollm2/eagle3"


@dataclass(frozen=True, slots=True)
class RealSizes:
    """The sizes of the requests: kinds of prompts counted from the first, prompts of a kind, and lengths of chains.
    `settings` are pairs of precision and temperature. Greedy texts are compared in float32, where few logits tie."""

    kinds: int = len(REAL_TASKS)
    prompts: int = 1
    new_tokens: int = 96
    lengths: tuple[int, ...] = (3, 5)
    settings: tuple[tuple[torch.dtype, float], ...] = (
        (torch.bfloat16, 0.0),
        (torch.bfloat16, 1.0),
        (torch.float32, 0.0),
    )


TINY = RealSizes(kinds=1, new_tokens=6, lengths=(2,), settings=((torch.float32, 0.0),))


def at_hand() -> bool:
    """Return whether the model has been fetched."""
    return is_fetched(NAME)


def real_rows(device: torch.device, tiny: bool) -> Iterator[dict]:
    """Time the fetched model beside transformers and plain decoding in captured rounds; yield the rows of all
    precisions and temperatures. `tiny` takes a single short request."""
    sizes = TINY if tiny else RealSizes()
    prompts = [prompt for task in REAL_TASKS[: sizes.kinds] for prompt in task.make(sizes.prompts, 0)]
    for dtype, temperature in sizes.settings:
        (model, tokenizer), drafter = zoo.load(NAME), zoo.load(DRAFTER)
        model, drafter = model.to(device, dtype), drafter.to(device, dtype)
        requests = [
            {name: value.to(device) for name, value in encode(tokenizer, [prompt]).items()} for prompt in prompts
        ]
        shared = {
            "model": NAME,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "drafter_parameters": sum(parameter.numel() for parameter in drafter.parameters()),
            "dtype": str(dtype)[6:],
            "batch": 1,
            "temperature": temperature,
        }
        runners = decoding_runners(model, drafter, sizes.new_tokens, sizes.lengths, temperature)
        yield from comparison_rows(runners, requests, BASELINES["real"], shared, device)
