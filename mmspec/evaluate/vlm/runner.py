"""How one request for text runs, through transformers or through the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor, nn

import mmspec
from mmspec.evaluate.engine.memory import peak_memory
from mmspec.evaluate.engine.runs import Runner, TimedRun, counted_passes, raise_errors, timed_run
from mmspec.evaluate.vlm.config import VlmSetting
from mmspec.evaluate.vlm.methods import VlmMethod
from mmspec.evaluate.vlm.requests import encode
from mmspec.evaluate.vlm.resources import VlmResources
from mmspec.vlm import Rounds
from mmspec.vlm.hf_model import class_generate

Inputs = Mapping[str, Tensor]


def cases(resources: VlmResources, setting: VlmSetting) -> list[dict]:
    """The inputs of every batch of a setting."""
    asked = list(setting.task.make(setting.prompts, setting.seed))
    return [encode(resources.processor, group) for group in setting.batches(asked)]


def sampling_arguments(temperature: float) -> dict:
    """Arguments of `generate` for plain greedy decoding, or for the model's own law at this temperature."""
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def end_tokens(model: nn.Module) -> list[int]:
    """Ids that end a text of this model."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]


def ending_arguments(model: nn.Module, natural: bool) -> dict:
    """Arguments of `generate` that let a model end its text, or keep it from that.

    Merely not stopping at the end-of-text token would go on behind it, where no training has been. The processor that
    suppresses it looks at no prefix, so it costs every method one call a pass.
    """
    ends = end_tokens(model)
    return {} if natural else {"eos_token_id": None, **({"suppress_tokens": ends} if ends else {})}


def generation_arguments(resources: VlmResources, setting: VlmSetting) -> dict:
    """Arguments of `generate` that all methods of a setting share."""
    ends = ending_arguments(resources.model, setting.task.natural)
    return {"max_new_tokens": setting.limit, **ends, **sampling_arguments(setting.temperature)}


def runner(method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Runner:
    """A function of (inputs, seed) that decodes once, timed, with its peak memory. What it needs is loaded now."""
    run = timed_runner(method, resources, setting)

    def measured(inputs: Inputs, seed: int) -> TimedRun:
        with peak_memory(resources.model.device) as peak:
            made = run(inputs, seed)
        return replace(made, peak_bytes=peak[0]) if peak else made

    return measured


def timed_runner(method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Runner:
    """As `runner`, without the memory."""
    model, asked = resources.model, generation_arguments(resources, setting)
    if method.engine == "transformers":
        options = {name: value(resources) if callable(value) else value for name, value in method.options.items()}
        return lambda inputs, seed: run_peer(model, inputs, seed, **asked, **options)
    drafter = method.build_drafter(resources)
    asked["strict"] = method.strict
    if method.captured:
        asked["capture"] = resources.once("rounds", Rounds)
    return lambda inputs, seed: run_ours(model, inputs, seed, drafter, method.rule, **asked)


def run_ours(model: nn.Module, inputs: Inputs, seed: int, drafter: object, rule: str, **generation: object) -> TimedRun:
    """One timed request through the engine."""
    began = perf_counter()
    out = mmspec.generate(model, drafter=drafter, rule=rule, seed=seed, return_dict=True, **inputs, **generation)
    seconds = perf_counter() - began
    raise_errors(out.errors)
    return timed_run(out.stats, _generated(out.sequences, inputs, out.stats.emitted), seconds)


def run_peer(model: nn.Module, inputs: Inputs, seed: int = 0, **generation: object) -> TimedRun:
    """One timed request through transformers' own `generate`."""
    torch.manual_seed(seed)
    with torch.no_grad(), counted_passes(model) as passes, end_of_first_pass(model) as ended:
        began = perf_counter()
        sequences = class_generate(model)(**inputs, **generation)
        seconds = perf_counter() - began
    ends = end_tokens(model) if generation.get("eos_token_id", ...) is not None else []
    ids = tuple(_until_end(row, ends) for row in _generated(sequences, inputs))
    prefill = ended[0] - began if ended else None
    return TimedRun(seconds, ids, len(passes), max(map(len, ids)) / len(passes), prefill=prefill)


@contextmanager
def end_of_first_pass(model: nn.Module) -> Iterator[list[float]]:
    """A list that holds, after the first forward pass of `model` inside the block, when that pass ended."""
    ended: list[float] = []

    def note(*given: object) -> None:
        if not ended:
            ended.append(perf_counter())

    hook = model.register_forward_hook(note)
    try:
        yield ended
    finally:
        hook.remove()


def _generated(sequences: Tensor, inputs: Inputs, lengths: list[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Generated ids per row, cut to `lengths` where given."""
    rows = sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return tuple(tuple(row if lengths is None else row[: lengths[i]]) for i, row in enumerate(rows))


def _until_end(row: tuple[int, ...], ends: list[int]) -> tuple[int, ...]:
    """A row up to its first end token, without the padding behind it."""
    stop = next((index + 1 for index, token in enumerate(row) if token in ends), len(row))
    return row[:stop]
