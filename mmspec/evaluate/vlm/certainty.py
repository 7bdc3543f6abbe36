"""How easy a text is for the target that wrote it: an easy text flatters every drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.rows import Margin
from mmspec.evaluate.engine.runs import TimedRun
from mmspec.evaluate.vlm.methods import PEER
from mmspec.evaluate.vlm.runner import end_tokens
from mmspec.vlm.admission import take_apart
from mmspec.vlm.training.examples import with_answers
from mmspec.vlm.training.teacher import teacher_pass


@torch.no_grad()
def certainty(timed: TimedSetting) -> dict:
    """Two shares over the tokens of each case's first run that transformers completed.

    top1_probability: the target's mean largest probability at temperature 1.   answer_share: where texts cannot end by
    themselves, tokens up to the first place where the target would most probably have ended its answer, else None.
    """
    model, natural = timed.resources.model, timed.setting.task.natural
    ends = torch.tensor(end_tokens(model), dtype=torch.long)
    top1, inside = [], []
    for inputs, case in zip(timed.cases, timed.results[PEER], strict=True):
        run = next((one for one in case if isinstance(one, TimedRun)), None)
        if run is None:
            continue
        new = _padded(run.output)
        there = _padded([[1] * len(row) for row in run.output]).bool()
        logits = _logits(model, inputs, new)
        if not natural:
            inside.append((torch.isin(logits.argmax(-1), ends).cumsum(-1) == 0)[there])
            logits = logits.index_fill(-1, ends, float("-inf"))
        top1.append(logits.softmax(-1).amax(-1)[there])
    return {"top1_probability": _mean(top1), "answer_share": _mean(inside)}


def preference(timed: TimedSetting, case: int, peer: str) -> Margin:
    """By how much the target's logits prefer the tokens that the row `peer` gave in a case to others, read in one pass."""
    run = next(one for one in timed.results[peer][case] if isinstance(one, TimedRun))
    return margins(timed.resources.model, timed.cases[case], run.output, timed.setting.task.natural)


@torch.no_grad()
def margins(model: nn.Module, inputs: Mapping[str, Tensor], output: Sequence[Sequence[int]], natural: bool) -> Margin:
    """Read a text once, to tell how near to a tie each of its tokens was.

    Args:
        model: The target.
        inputs: The prompts, as `generate` takes them.
        output: The tokens of every row.
        natural: End tokens count as all others.

    Returns:
        A function of (row, place, other token): the logit of the row's own token less that of the other.
    """
    logits = _logits(model, inputs, _padded(output))
    if not natural:
        logits = logits.index_fill(-1, torch.tensor(end_tokens(model), dtype=torch.long), float("-inf"))
    return lambda row, place, other: float(logits[row, place, output[row][place]] - logits[row, place, other])


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """int64 [B, T]."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])


def _logits(model: nn.Module, inputs: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """float32 [B, T, V], what the target says before each of the tokens int64 [B, T]."""
    if "mm_token_type_ids" in inputs:
        return _logits_at_once(model, inputs, new)
    # in two passes: a sampled placeholder id would ask the first one for a picture
    first = model(**inputs, use_cache=True, logits_to_keep=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(new)], 1)
    rest = model(input_ids=new, attention_mask=mask, past_key_values=first.past_key_values)
    return torch.cat([first.logits, rest.logits[:, :-1]], 1).float()


def _logits_at_once(model: nn.Module, inputs: Mapping[str, Tensor], new: Tensor) -> Tensor:
    """The same of a class that would place later tokens by what its last request was: in one pass, its positions told."""
    parts = take_apart(model)
    pictures = torch.isin(new, torch.tensor(parts.placeholders, device=new.device))  # nobody has one for these
    full, answer = with_answers(dict(inputs), new.masked_fill(pictures, end_tokens(model)[0]).tolist(), 0)
    states = teacher_pass(parts, full, answer).last[:, -new.shape[1] - 1 : -1]
    return parts.head(states).float()


def _mean(parts: list[Tensor]) -> float | None:
    return round(float(torch.cat(parts).float().mean()), 3) if parts else None
