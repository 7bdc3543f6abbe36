"""What a loaded model is tried on: the proofs at load, strict passes, captured rounds, a conversation."""

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
_TRIAL_PASSES, _BITS_PASSES = 40, 160  # single passes that the proofs cost, about


def pass_seconds(parts: Parts) -> float:
    """Seconds of one pass over one token without a cache, the faster of two behind a first."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=parts.device)
    took = []
    for _ in range(3):
        began = perf_counter()
        with torch.no_grad():
            parts.decoder(input_ids=ids, use_cache=False).last_hidden_state.sum().item()
        took.append(perf_counter() - began)
    return min(took[1:])


def proofs_of(parts: Parts, inputs: dict[str, Any], total: int, left: float, single: float) -> list[Finding]:
    """The proofs that a request of a class would have to pass, shown one by one.

    Args:
        parts: Of the loaded model.
        inputs: A prompt, as `generate` takes it.
        total: Tokens of the prompt and its answer.
        left: Seconds that may be spent; a class that the suite tests is spared proofs that take longer.
        single: Seconds of a single pass.
    """
    if parts.trusted and single * _TRIAL_PASSES > left:
        return [Finding("a tree of drafts", None, "spared, as it would take too long and the suite tests the class")]
    found = [_tried("a tree of drafts", lambda: prove_model(parts), "gives what single steps give, padded rows too")]
    if parts.trusted or not found[-1].holds:
        return found
    pictures = [name for name, value in inputs.items() if isinstance(value, Tensor) and "pixel" in name]
    if pictures:
        found.append(
            _tried("behind a picture", lambda: prove_prompt(parts, inputs), "gives what single steps give there")
        )
    seen = f"every layer sees all of {total} tokens, or its window"
    return [*found, _tried("how far layers see", lambda: prove_receptive_field(parts, total), seen)]


def trees_of(parts: Parts) -> Finding:
    """Trees of drafts, which every model that is taken verifies."""
    how = "recurrent layers step along them" if parts.plan.stateful else "dynamic and static ones"
    return Finding("trees", True, how)


def features_of(parts: Parts, inputs: dict[str, Any], processor: Any, left: float, single: float) -> list[Finding]:
    """Trees, strict passes, captured rounds and sessions; see `proofs_of` for the arguments."""
    found = [trees_of(parts)]
    if single * _BITS_PASSES > left:
        found.append(Finding("strict", None, "not tried: its proof would take too long here; it runs at first use"))
    else:
        found.append(_tried("strict", lambda: prove_bits(parts), "drafted passes have the bits of single ones"))
    return [*found, _captured(parts.model, inputs), _session(parts, inputs, processor)]


def _tried(name: str, trial: Callable[[], object], detail: str) -> Finding:
    """Runs a trial."""
    began = perf_counter()
    try:
        trial()
    except ValueError as error:
        return Finding(name, False, str(error).removeprefix("model: "), perf_counter() - began)
    return Finding(name, True, detail, perf_counter() - began)


def _captured(model: nn.Module, inputs: dict[str, Any]) -> Finding:
    """Whether rounds of plain decoding can be captured; drafters of a fixed shape follow them."""
    began = perf_counter()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run = start(model, capture=True, max_new_tokens=_TURN, do_sample=False, **inputs)
            while run.step():
                pass
    except ValueError as error:
        return Finding("capture", False, str(error), perf_counter() - began)
    seconds = perf_counter() - began
    reason = next((str(one.message) for one in said if str(one.message).startswith("capture: ")), "")
    if not run.captured:
        reason = reason.removeprefix("capture: ").removesuffix("; the ordinary loop runs instead")
        reason = reason or "expected rounds behind the prompt, got none before the answer ended"
        return Finding("capture", False, f"{reason} (on {model.device.type})", seconds)
    where = "as a CUDA graph" if model.device.type == "cuda" else "without the host; a CUDA graph needs a GPU"
    return Finding("capture", True, f"rounds run {where}", seconds)


def _same_answer(second: Tensor, fresh: Tensor, logits: Sequence[Tensor]) -> bool:
    """Whether two answers are the same up to rounding: the first tokens that differ may have nearly equal logits.

    Args:
        second: int64 [1, L], the conversation with the answer of a second turn.
        fresh: int64 [1, L], the same of a fresh call.
        logits: Of each token of the fresh answer, [1, V].
    """
    start, end = fresh.shape[1] - len(logits), min(second.shape[1], fresh.shape[1])
    unlike = (second[0, start:end] != fresh[0, start:end]).nonzero()
    if not len(unlike):
        return second.shape == fresh.shape
    step = int(unlike[0])
    row = logits[step][0].float()
    ours, theirs = (int(ids[0, start + step]) for ids in (second, fresh))
    return bool((row[ours] - row[theirs]).abs() <= _TIE * row.std())


def _session(parts: Parts, inputs: dict[str, Any], processor: Any) -> Finding:
    """Whether a second turn behind a kept cache says what a fresh call with the whole conversation says."""
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
