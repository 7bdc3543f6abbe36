"""One cell of the table: a model, a prompt, a way of drafting, compared with `model.generate`."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import mmspec
from mmspec.vlm.output import RowsFailed
from tests.vlm.drafts import Scripted, continuation

STEPS = 24
WAYS = ("plain", "chain", "tree", "lookup")
ENABLED = "enable"  # the first use of a fresh model through `mmspec.enable`, which drafts by lookup
NEAR = 1e-4  # a gap between two logits, relative to the larger, below which fp32 may order them either way
WRONG_BELOW = 61  # wrong siblings are ordinary words: no drafter may propose placeholders of pictures


@dataclass(frozen=True)
class Reference:
    """What transformers itself generates. logits: per step [B, V]."""

    sequences: Tensor
    logits: tuple[Tensor, ...]


def reference(model: nn.Module, inputs: dict[str, Tensor]) -> Reference:
    """Greedy output of a copy of the model: RoPE that depends on the length leaves its state on modules."""
    out = copy.deepcopy(model).generate(
        **inputs, max_new_tokens=STEPS, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    return Reference(out.sequences, out.logits)


def outcome(model: nn.Module, inputs: dict[str, Tensor], way: str, truth: Reference) -> str:
    """same, near-tie, or one of refused, differs and crashes with what happened behind a colon."""
    settings = dict(inputs, max_new_tokens=STEPS, do_sample=False)
    try:
        if way == ENABLED:
            with mmspec.enable(model, mmspec.drafters.PromptLookup()):
                ours = model.generate(**settings)
        else:
            drafter = _drafter(way, continuation(truth.sequences, inputs["input_ids"].shape[1]))
            ours = mmspec.generate(model, drafter=drafter, **settings)
    except Exception as error:  # whatever it is goes into the table
        return f"{'refused' if _ours(error) else 'crashes'}: {told(error)}"
    return compare(ours, truth)


def compare(ours: Tensor, truth: Reference) -> str:
    """same, near-tie or differs."""
    if ours.shape != truth.sequences.shape:
        return f"differs: shape {tuple(ours.shape)} instead of {tuple(truth.sequences.shape)}"
    if torch.equal(ours, truth.sequences):
        return "same"
    start = ours.shape[1] - len(truth.logits)  # some classes return what was generated, without the prompt
    verdicts = []
    for row in range(len(ours)):
        places = (ours[row] != truth.sequences[row]).nonzero()
        if len(places):
            step = int(places[0]) - start
            logits = truth.logits[step][row].float()
            gap = float((logits.max() - logits[ours[row, start + step]]) / logits.abs().max())
            verdicts.append((gap >= NEAR, f"differs: row {row} from token {step}, logits apart by {gap:.0e}"))
    return next((text for wrong, text in verdicts if wrong), "near-tie")


def _drafter(way: str, truth: list[list[int]]) -> object | None:
    if way == "plain":
        return None
    if way == "lookup":
        return mmspec.drafters.PromptLookup()
    return Scripted(truth, {"chain": "chain", "tree": "dynamic"}[way], vocab=WRONG_BELOW)


def _ours(error: Exception) -> bool:
    """Whether the error is a sentence of mmspec: a ValueError raised by its own code, and no row that failed midway."""
    if not isinstance(error, ValueError) or isinstance(error, RowsFailed):
        return False
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_globals.get("__name__", "").startswith("mmspec")


def told(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
