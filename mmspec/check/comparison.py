from __future__ import annotations

import warnings
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from mmspec.check.report import DraftedComparison
from mmspec.run.compare import compare as compare_runs
from mmspec.run.scenes import long_scenes
from mmspec.run.vlm_requests import VlmPrompt, encode
from mmspec.run.vlm_runs import ending_arguments
from mmspec.vlm.architectures import Parts
from mmspec.vlm.auto import offered_drafters
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.prompt_lookup import PromptLookup
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
    drafter = drafter_from_text(drafter, model) if isinstance(drafter, str) else drafter
    settings = {**ending_arguments(model, natural=False), "do_sample": False}
    pair = compare_runs(model, inputs, drafter, tokens, _WARM, **settings)
    return DraftedComparison(
        drafter=drafter.name,
        tokens=pair.plain.tokens,
        first_difference=pair.first_difference,
        plain_passes=pair.plain.target_passes,
        drafted_passes=pair.drafted.target_passes,
        plain_s=pair.plain.seconds,
        drafted_s=pair.drafted.seconds,
        prompt=words,
    )
