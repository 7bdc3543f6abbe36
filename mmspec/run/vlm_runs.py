"""A request for text through the engine, or through transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmspec.run.placement import clock
from mmspec.run.timed_run import TimedRun, counted_passes, raise_errors, timed_run
from mmspec.vlm.api import generate
from mmspec.vlm.hf_model import class_generate

Inputs = Mapping[str, Tensor]


def sampling_arguments(temperature: float) -> dict:
    """Return the arguments of `generate` for greedy decoding, or for sampling from the model's own distribution."""
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def end_tokens(model: nn.Module) -> list[int]:
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]


def ending_arguments(model: nn.Module, natural: bool) -> dict:
    """Return the arguments of `generate` that let a model end its text, or prevent that. The end-of-text token is
    suppressed, since merely not stopping there would continue with text unlike any training data. The processor that
    suppresses it ignores the prefix, so it costs every method a call per pass."""
    ends = end_tokens(model)
    return {} if natural else {"eos_token_id": None, **({"suppress_tokens": ends} if ends else {})}


def run_ours(model: nn.Module, inputs: Inputs, seed: int, drafter: object, rule: str, **generation: object) -> TimedRun:
    began = clock(model.device)
    out = generate(model, drafter=drafter, rule=rule, seed=seed, return_dict=True, **inputs, **generation)
    seconds = clock(model.device) - began
    raise_errors(out.errors)
    return timed_run(out.stats, _generated(out.sequences, inputs, out.stats.emitted), seconds)


def run_peer(model: nn.Module, inputs: Inputs, seed: int = 0, **generation: object) -> TimedRun:
    """Time a request through transformers' own `generate`."""
    torch.manual_seed(seed)
    with torch.no_grad(), counted_passes(model) as passes, end_of_first_pass(model) as ended:
        began = clock(model.device)
        sequences = class_generate(model)(**inputs, **generation)
        seconds = clock(model.device) - began
    ends = end_tokens(model) if generation.get("eos_token_id", ...) is not None else []
    ids = tuple(_until_end(row, ends) for row in _generated(sequences, inputs))
    prefill = ended[0] - began if ended else None
    return TimedRun(seconds, ids, len(passes), max(map(len, ids)) / len(passes), prefill=prefill)


@contextmanager
def end_of_first_pass(model: nn.Module) -> Iterator[list[float]]:
    """Yield a list that holds the time at which the first forward pass of `model` inside the block ended."""
    ended: list[float] = []

    def note(*arguments: object) -> None:
        if not ended:
            ended.append(clock(model.device))

    hook = model.register_forward_hook(note)
    try:
        yield ended
    finally:
        hook.remove()


def _generated(sequences: Tensor, inputs: Inputs, lengths: list[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Return the generated ids per row, cut to `lengths` if set."""
    rows = sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return tuple(tuple(row if lengths is None else row[: lengths[i]]) for i, row in enumerate(rows))


def _until_end(row: tuple[int, ...], ends: list[int]) -> tuple[int, ...]:
    """Return a row up to its first end token, without the padding after it."""
    stop = next((index + 1 for index, token in enumerate(row) if token in ends), len(row))
    return row[:stop]
