"""The trials of a loaded model: the proofs at load, strict passes, captured rounds, a conversation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.check.report import Finding
from mmspec.vlm.admission import prove_bits, prove_model, prove_prompt, prove_receptive_field
from mmspec.vlm.api import generate, start
from mmspec.vlm.architectures import Parts
from mmspec.vlm.conversation.past import Past

_TIE = 0.01  # standard deviations of a row's logits, below which two tokens count as equal
_TURN = 4  # tokens of an answer in the trial of a conversation
_TRIAL_PASSES, _BITS_PASSES = 40, 160  # the cost of the proofs in single passes, about


def pass_seconds(parts: Parts) -> float:
    """Return the seconds of a pass over a single token without a cache: the faster of two warm passes."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=parts.device)
    seconds = []
    for _ in range(3):
        began = perf_counter()
        with torch.no_grad():
            parts.decoder(input_ids=ids, use_cache=False).last_hidden_state.sum().item()
        seconds.append(perf_counter() - began)
    return min(seconds[1:])


def proofs_of(parts: Parts, inputs: dict[str, Any], total: int, left: float, single: float) -> list[Finding]:
    """Run the proofs that a class has to pass. `total` is the tokens of prompt and answer; `single` the seconds of a
    single pass. `left` is the seconds to spend: a class that the suite tests skips longer proofs."""
    if parts.trusted and single * _TRIAL_PASSES > left:
        return [Finding("a tree of drafts", None, "skipped: it would take too long, and the suite tests the class")]
    proofs = [_tried("a tree of drafts", lambda: prove_model(parts), "equals single steps, padded rows too")]
    if parts.trusted or not proofs[-1].holds:
        return proofs
    pictures = [name for name, value in inputs.items() if isinstance(value, Tensor) and "pixel" in name]
    if pictures:
        proofs.append(_tried("behind a picture", lambda: prove_prompt(parts, inputs), "equals single steps there"))
    seen = f"every layer sees all of {total} tokens, or its window"
    return [*proofs, _tried("how far layers see", lambda: prove_receptive_field(parts, total), seen)]


def trees_of(parts: Parts) -> Finding:
    how = "recurrent layers step along them" if parts.plan.stateful else "dynamic and static trees"
    return Finding("trees", True, how)


def features_of(parts: Parts, inputs: dict[str, Any], processor: Any, left: float, single: float) -> list[Finding]:
    """Try trees, strict passes, captured rounds and sessions; see `proofs_of` for the arguments."""
    findings = [trees_of(parts)]
    if single * _BITS_PASSES > left:
        findings.append(Finding("strict", None, "not tried: its proof would take too long here; it runs at first use"))
    else:
        findings.append(_tried("strict", lambda: prove_bits(parts), "drafted passes have the bits of single passes"))
    return [*findings, _captured(parts.model, inputs), _session(parts, inputs, processor)]


def _tried(name: str, trial: Callable[[], object], detail: str) -> Finding:
    began = perf_counter()
    try:
        trial()
    except ValueError as error:
        return Finding(name, False, str(error).removeprefix("model: "), perf_counter() - began)
    return Finding(name, True, detail, perf_counter() - began)


def _captured(model: nn.Module, inputs: dict[str, Any]) -> Finding:
    """Return whether rounds of plain decoding can be captured; drafters of a fixed shape are captured with them."""
    began = perf_counter()
    try:
        with warnings.catch_warnings(record=True) as sentences:
            warnings.simplefilter("always")
            run = start(model, capture=True, max_new_tokens=_TURN, do_sample=False, **inputs)
            while run.step():
                pass
    except ValueError as error:
        return Finding("capture", False, str(error), perf_counter() - began)
    seconds = perf_counter() - began
    messages = [str(warning.message) for warning in sentences]
    reason = next((message for message in messages if message.startswith("capture: ")), "")
    if not run.captured:
        reason = reason.removeprefix("capture: ").removesuffix("; the ordinary loop runs instead")
        reason = reason or "expected rounds behind the prompt, got none before the answer ended"
        return Finding("capture", False, f"{reason} (on {model.device.type})", seconds)
    where = "as a CUDA graph" if model.device.type == "cuda" else "without the host; a CUDA graph needs a GPU"
    return Finding("capture", True, f"rounds run {where}", seconds)


def _same_answer(second: Tensor, fresh: Tensor, logits: Sequence[Tensor]) -> bool:
    """Return whether two conversations with their answers, int64 [1, L], are the same up to rounding: the first tokens
    that differ may have nearly equal logits, [1, V] for each token of the fresh answer."""
    start, end = fresh.shape[1] - len(logits), min(second.shape[1], fresh.shape[1])
    unlike = (second[0, start:end] != fresh[0, start:end]).nonzero()
    if not len(unlike):
        return second.shape == fresh.shape
    step = int(unlike[0])
    row = logits[step][0].float()
    ours, theirs = (int(ids[0, start + step]) for ids in (second, fresh))
    return bool((row[ours] - row[theirs]).abs() <= _TIE * row.std())


def _session(parts: Parts, inputs: dict[str, Any], processor: Any) -> Finding:
    """Return whether a second turn on the committed cache gives the tokens of a fresh call with the whole conversation."""
    model, settings = parts.model, dict(max_new_tokens=_TURN, do_sample=False)
    began = perf_counter()
    try:
        past = Past(model)
        ids = generate(model, past_key_values=past, **inputs, **settings)
        more = torch.cat([ids, inputs["input_ids"][:, -2:]], 1)
        longer = {**inputs, "input_ids": more}
        for name, value in inputs.items():
            if name != "input_ids" and isinstance(value, Tensor) and value.shape == inputs["input_ids"].shape:
                fill = 1 if name == "attention_mask" else 0
                longer[name] = torch.nn.functional.pad(value, (0, more.shape[1] - value.shape[1]), value=fill)
        second = generate(model, past_key_values=past, **longer, **settings)
        fresh = generate(model, **longer, **settings, return_dict_in_generate=True, output_logits=True)
        same = _same_answer(second, fresh.sequences, fresh.logits)
    except ValueError as error:
        return Finding("sessions", False, str(error), perf_counter() - began)
    detail = "a second turn reads only what is new" if same else "a second turn differs from a fresh call"
    if same and not getattr(processor, "chat_template", None):
        detail += "; mmspec.Session wants a processor with a chat template"
    return Finding("sessions", same, detail, perf_counter() - began)
