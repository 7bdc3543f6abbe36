"""The runners of requests for text, through transformers or the engine, and the certainty of the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.layers.compat import CACHE
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.memory import peak_memory
from mmspec.evaluate.engine.placement import clock, inputs_on
from mmspec.evaluate.engine.rows import Margin
from mmspec.evaluate.engine.runs import Runner, TimedRun, counted_passes, raise_errors, timed_run
from mmspec.evaluate.vlm.config import VlmSetting
from mmspec.evaluate.vlm.methods import PEER, VlmMethod
from mmspec.evaluate.vlm.requests import encode
from mmspec.evaluate.vlm.resources import VlmResources
from mmspec.vlm import Rounds
from mmspec.vlm.admission import take_apart
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.training.examples import with_answers
from mmspec.vlm.training.teacher import teacher_pass

Inputs = Mapping[str, Tensor]


def cases(resources: VlmResources, setting: VlmSetting) -> list[dict]:
    prompts = list(setting.task.make(setting.prompts, setting.seed))
    return [inputs_on(encode(resources.processor, group), resources.model) for group in setting.batches(prompts)]


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


def generation_arguments(resources: VlmResources, setting: VlmSetting) -> dict:
    """Return the arguments of `generate` that all methods of a setting share."""
    ends = ending_arguments(resources.model, setting.task.natural)
    return {"max_new_tokens": setting.limit, **ends, **sampling_arguments(setting.temperature)}


def runner(method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Runner:
    """Return a function of (inputs, seed) that decodes once, with time and peak memory; its parts are loaded now."""
    run = timed_runner(method, resources, setting)

    def measured(inputs: Inputs, seed: int) -> TimedRun:
        with peak_memory(resources.model.device) as peak:
            outcome = run(inputs, seed)
        return replace(outcome, peak_bytes=peak[0]) if peak else outcome

    return measured


def timed_runner(method: VlmMethod, resources: VlmResources, setting: VlmSetting) -> Runner:
    """Return a function as `runner` does, without the peak memory."""
    model, arguments = resources.model, generation_arguments(resources, setting)
    if method.engine == "transformers":
        options = {name: value(resources) if callable(value) else value for name, value in method.options.items()}
        return lambda inputs, seed: run_peer(model, inputs, seed, **arguments, **options)
    drafter = method.build_drafter(resources)
    arguments["strict"] = method.strict
    if method.captured:
        arguments["capture"] = resources.once("rounds", Rounds)
    return lambda inputs, seed: run_ours(model, inputs, seed, drafter, method.rule, **arguments)


def run_ours(model: nn.Module, inputs: Inputs, seed: int, drafter: object, rule: str, **generation: object) -> TimedRun:
    began = clock(model.device)
    out = mmspec.generate(model, drafter=drafter, rule=rule, seed=seed, return_dict=True, **inputs, **generation)
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


@torch.no_grad()
def certainty(timed: TimedSetting) -> dict:
    """Return the certainty of the target over the tokens of each case's first run that transformers completed.
    `top1_probability` is the target's mean largest probability at temperature 1. Where the end token is suppressed,
    `answer_share` is the share of tokens before the target would most probably have ended its answer; else None."""
    model, natural = timed.resources.model, timed.setting.task.natural
    ends = torch.tensor(end_tokens(model), dtype=torch.long, device=model.device)
    top1, inside = [], []
    for inputs, case in zip(timed.cases, timed.results[PEER], strict=True):
        run = next((run for run in case if isinstance(run, TimedRun)), None)
        if run is None:
            continue
        new = _padded(run.output, model.device)
        there = _padded([[1] * len(row) for row in run.output], model.device).bool()
        logits = _logits(model, inputs, new)
        if not natural:
            inside.append((torch.isin(logits.argmax(-1), ends).cumsum(-1) == 0)[there])
            logits = logits.index_fill(-1, ends, float("-inf"))
        top1.append(logits.softmax(-1).amax(-1)[there])
    return {"top1_probability": _mean(top1), "answer_share": _mean(inside)}


def preference(timed: TimedSetting, case: int, peer: str) -> Margin:
    """Return the margins of the tokens that the row `peer` generated in a case, read in a single pass."""
    run = next(result for result in timed.results[peer][case] if isinstance(result, TimedRun))
    return margins(timed.resources.model, timed.cases[case], run.output, timed.setting.task.natural)


@torch.no_grad()
def margins(model: nn.Module, inputs: Mapping[str, Tensor], output: Sequence[Sequence[int]], natural: bool) -> Margin:
    """Run the target once over the tokens of every row of an output and return a function of (row, place, other token):
    the logit of the row's own token less that of the other token. `natural` treats end tokens like all others."""
    logits = _logits(model, inputs, _padded(output, model.device))
    if not natural:
        ends = torch.tensor(end_tokens(model), dtype=torch.long, device=model.device)
        logits = logits.index_fill(-1, ends, float("-inf"))
    return lambda row, place, other: float(logits[row, place, output[row][place]] - logits[row, place, other])


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return the rows as int64 [B, T] on a device, padded with zeros."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def _logits(model: nn.Module, inputs: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """Return the target's logits float32 [B, T, V] before each of the tokens int64 [B, T]."""
    if "mm_token_type_ids" in inputs:
        return _logits_at_once(model, inputs, new)
    # in two passes: in a single pass, a sampled placeholder id would require a picture
    first = model(**inputs, use_cache=True, logits_to_keep=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(new)], 1)
    rest = model(input_ids=new, attention_mask=mask, **{CACHE: first[CACHE]})
    return torch.cat([first.logits, rest.logits[:, :-1]], 1).float()


def _logits_at_once(model: nn.Module, inputs: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """Return the logits in a single pass with explicit positions, for classes that would otherwise place the tokens by
    the positions of their last request."""
    parts = take_apart(model)
    pictures = torch.isin(new, torch.tensor(parts.placeholders, device=new.device))  # placeholders without a picture
    full, answer = with_answers(dict(inputs), new.masked_fill(pictures, end_tokens(model)[0]).tolist(), 0)
    states = teacher_pass(parts, full, answer).last[:, -new.shape[1] - 1 : -1]
    return parts.head(states).float()


def _mean(parts: list[Tensor]) -> float | None:
    return round(float(torch.cat(parts).float().mean()), 3) if parts else None
