"""Prompts that a chat model writes itself, for training without a file of prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from mmspec.io.files import append_lines
from mmspec.io.interrupts import Stopped, stop_requests
from mmspec.io.validation import Range, Size, check_fields
from mmspec.vlm.hf_model import class_generate
from mmspec.vlm.training.examples import JsonExamples, is_tokenizer, render_chat

_SHORTEST = 4  # least tokens of a prompt
_FRUITLESS = 20  # consecutive batches without a new prompt that end the run
_MARK = "\u2042"


@dataclass(frozen=True, slots=True)
class PromptSettings:
    longest: Annotated[int, Range(_SHORTEST)] = 110  # most tokens of a prompt; longer prompts are dropped
    batch: Size = 64  # prompts written at a time
    seed: int = 0  # of sampling

    __post_init__ = check_fields


def write_own_prompts(
    model: nn.Module,
    tokenizer: Any,
    count: int,
    file: Path,
    how: PromptSettings = PromptSettings(),
    on_batch: Callable[[int], None] = lambda done: None,
) -> JsonExamples:
    """Let a chat model of text write prompts at temperature 1 from the opening of a user turn ("Magpie: Alignment Data
    Synthesis from Scratch by Prompting Aligned LLMs with Nothing"), and return the first `count` examples of the file.

    A prompt is dropped if it is cut off, too short or a duplicate, or if its text gives other tokens than those
    sampled. Prompts in `file` (JSONL) count, and only the missing prompts are written. `on_batch` gets the number of
    prompts in the file. It fails after 20 consecutive batches without a new prompt, and stops at SIGINT or SIGTERM."""
    opening = torch.tensor([user_turn_opening(tokenizer)], device=model.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = [line["text"] for line in JsonExamples(file).lines] if file.exists() else []
    known, number, fruitless = set(texts), len(texts), 0
    with stop_requests() as request:
        while len(texts) < count:
            fresh = [
                text for text in _write_batch(model, tokenizer, opening, how, how.seed + number) if text not in known
            ]
            fresh = list(dict.fromkeys(fresh))[: count - len(texts)]
            append_lines(
                file, [json.dumps({"key": f"own-{len(texts) + i}", "text": text}) for i, text in enumerate(fresh)]
            )
            texts += fresh
            known |= set(fresh)
            number, fruitless = number + 1, 0 if fresh else fruitless + 1
            on_batch(len(texts))
            if fruitless == _FRUITLESS:
                raise ValueError(
                    f"prompts: expected {count} different prompts, got {len(texts)} and then none in "
                    f"{_FRUITLESS} batches; ask for fewer, or pass a file of prompts"
                )
            if request.signal and len(texts) < count:
                raise Stopped(f"the prompts written so far ({len(texts)}) are kept in {file}", request.signal)
    return JsonExamples(file)


def user_turn_opening(tokenizer: Any) -> list[int]:
    """Return the tokens before a user's first text in a chat."""
    if not is_tokenizer(tokenizer) or not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "prompts: expected a text model with a chat template, got another model; pass a file of prompts"
        )
    whole = render_chat(tokenizer, [{"role": "user", "content": [{"type": "text", "text": _MARK}]}])
    opening, mark, _ = whole.partition(_MARK)
    if not mark or not opening:
        raise ValueError(
            "prompts: expected a chat template that opens a user's turn, got another template; pass a file of prompts"
        )
    return tokenizer(opening, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def _write_batch(model: nn.Module, tokenizer: Any, opening: torch.Tensor, how: PromptSettings, seed: int) -> list[str]:
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": how.longest}
    ids = opening.expand(how.batch, -1)
    rows = class_generate(model)(ids, attention_mask=torch.ones_like(ids), **sampling)[:, ids.shape[1] :].tolist()
    special, texts = set(tokenizer.all_special_ids), []
    for row in rows:
        end = next((place for place, token in enumerate(row) if token in special), None)
        if end is None or end < _SHORTEST:
            continue
        text = tokenizer.decode(row[:end])
        if text == text.strip() and tokenizer(text, add_special_tokens=False)["input_ids"] == row[:end]:
            texts.append(text)
    return texts
