from __future__ import annotations

import warnings
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.check.report import DraftedComparison
from mmspec.evaluate.vlm.requests import VlmPrompt, encode, long_scenes
from mmspec.evaluate.vlm.runner import ending_arguments
from mmspec.vlm.api import generate
from mmspec.vlm.architectures import Parts
from mmspec.vlm.auto import offered_drafters
from mmspec.vlm.drafters.prompt_lookup import PromptLookup
from mmspec.vlm.output import Generated
from mmspec.vlm.proof.trial import ordinary_tokens
from mmspec.zoo.world.render import render

SIDE = 336  # pixels of the picture for models that are not of the zoo
_REQUEST, _WARM = "Describe this picture in detail.", 4
_TEXT = "Write the numbers from one to twenty in words, and then write them once more."


def sample_prompt(parts: Parts, processor: Any, zoo: str) -> tuple[dict[str, Any], str]:
    """Return a prompt, as inputs of `generate` on the model's device and in words; `zoo` is its name in the zoo or ""."""
    reason = "no processor"
    if processor is not None:
        picture = render(long_scenes(1)[0])
        size = picture.size if zoo else (SIDE, SIDE)
        reads_pictures = getattr(processor, "image_processor", None) is not None
        pictures = (picture.resize(size, Image.Resampling.BICUBIC),) if reads_pictures else ()
        request = _REQUEST if reads_pictures else _TEXT
        words = f"{request!r}" + (f", with a picture of {size[0]} x {size[1]} pixels" if reads_pictures else "")
        try:
            inputs = encode(processor, [VlmPrompt(request, pictures)])
            inputs = {name: _placed(value, parts.device) for name, value in inputs.items()}
            if inputs["input_ids"].numel() and int(inputs["input_ids"].max()) < parts.vocab_size:
                return {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}, words
            reason = "its tokenizer has other tokens"
        except Exception as error:  # processors raise errors of any class over a prompt
            reason = f"its processor fails: {type(error).__name__}"
    ids = ordinary_tokens(parts, 1, 12).repeat(1, 2)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, f"24 tokens, the same 12 twice ({reason})"


def _placed(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def picture_tokens(parts: Parts, inputs: dict[str, Any]) -> int:
    places = torch.tensor(parts.placeholders or (-1,), device=inputs["input_ids"].device)
    return int(torch.isin(inputs["input_ids"], places).sum())


def best_drafter(model: nn.Module) -> Any:
    """Return the trained drafter that `drafter="auto"` has for a model, else prompt lookup."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report itself names drafters that do not fit or are not here
        offered = offered_drafters(model)
    return next((drafter for drafter in offered if not isinstance(drafter, PromptLookup)), offered[0])


def compare(model: nn.Module, inputs: dict[str, Any], words: str, drafter: Any, tokens: int) -> DraftedComparison:
    """Decode a prompt (in `words` for people) greedily, plainly and with a drafter or its text; both ways are warmed
    up. An answer has `tokens` tokens and does not end earlier."""
    settings = {**inputs, **ending_arguments(model, natural=False), "do_sample": False, "return_dict": True}
    for way in (None, drafter):
        generate(model, drafter=way, **settings, max_new_tokens=min(tokens, _WARM))
    plain, plain_s = _timed(model, None, settings, tokens)
    drafted, drafted_s = _timed(model, drafter, settings, tokens)
    return DraftedComparison(
        drafter=drafted.stats.drafter,
        tokens=sum(plain.stats.emitted),
        first_difference=_first_difference(plain.sequences[0], drafted.sequences[0], inputs["input_ids"].shape[1]),
        plain_passes=plain.stats.target_passes,
        drafted_passes=drafted.stats.target_passes,
        plain_s=plain_s,
        drafted_s=drafted_s,
        prompt=words,
    )


def _timed(model: nn.Module, drafter: Any, settings: dict[str, Any], tokens: int) -> tuple[Generated, float]:
    """Return the result of a call and its seconds, until a GPU has finished too."""
    began = perf_counter()
    output = generate(model, drafter=drafter, **settings, max_new_tokens=tokens)
    output.sequences.tolist()
    return output, perf_counter() - began


def _first_difference(plain: Tensor, drafted: Tensor, prompt: int) -> int | None:
    """Return the first token after the prompt that differs, counted from 1; the sequences are int64 [L]."""
    length = min(len(plain), len(drafted))
    unlike = (plain[:length] != drafted[:length]).nonzero()
    if len(unlike):
        return int(unlike[0]) - prompt + 1
    return None if len(plain) == len(drafted) else length - prompt + 1
