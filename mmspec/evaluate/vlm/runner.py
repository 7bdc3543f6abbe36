"""The runners of requests for text, through transformers or the engine, and the certainty of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE
from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.memory import peak_memory
from mmspec.evaluate.engine.rows import Margin
from mmspec.evaluate.engine.runs import Runner
from mmspec.evaluate.vlm.config import VlmSetting
from mmspec.evaluate.vlm.methods import PEER, VlmMethod
from mmspec.run.placement import inputs_on
from mmspec.run.timed_run import TimedRun
from mmspec.run.vlm_models import VlmResources
from mmspec.run.vlm_requests import encode
from mmspec.run.vlm_runs import Inputs, end_tokens, ending_arguments, run_ours, run_peer, sampling_arguments
from mmspec.vlm import Rounds
from mmspec.vlm.admission import take_apart
from mmspec.vlm.training.examples import with_answers
from mmspec.vlm.training.teacher import teacher_pass


def cases(resources: VlmResources, setting: VlmSetting) -> list[dict]:
    prompts = list(setting.task.make(setting.prompts, setting.seed))
    return [inputs_on(encode(resources.processor, group), resources.model) for group in setting.batches(prompts)]


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
