"""What a drafter is trained on: requests with pictures, and the answers to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """One request.

    key: names it in files of answers.   text: what the user asks.   images: shown before the text, RGB.
    answer: a reference answer, None where only the target's own is wanted.
    """

    key: str
    text: str
    images: tuple[Image, ...] = ()
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class JsonExamples:
    """Examples of a JSONL file: {"text": ..., "images": [paths beside the file], "answer": ... or absent} a line.

    Raises ValueError for a line that is not such a record.
    """

    file: Path
    lines: tuple[dict, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        records = []
        for number, line in enumerate(self.file.read_text().splitlines(), 1):
            try:
                record = json.loads(line)
                if not isinstance(record.get("text"), str) or not isinstance(record.get("images", []), list):
                    raise ValueError
            except (ValueError, AttributeError) as error:
                raise ValueError(
                    f"{self.file}, line {number}: expected a JSON object with a text and a list of images, got "
                    f"{line[:60]!r}"
                ) from error
            records.append(record)
        if not records:
            raise ValueError(f"{self.file}: expected one example a line, got an empty file")
        object.__setattr__(self, "lines", tuple(records))

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Example:
        from mmspec.core.images import open_image

        record = self.lines[index]
        images = tuple(open_image(self.file.parent / name) for name in record.get("images", []))
        return Example(str(record.get("key", index)), record["text"], images, record.get("answer"))


def encode(processor: Any, examples: Sequence[Example]) -> dict[str, Tensor]:
    """Inputs of `generate` for a batch of requests, padded on the left, through the processor's own chat template.

    Raises ValueError for a text that holds the processor's image placeholder.
    """
    mark = getattr(processor, "image_token", None)
    for example in examples:
        if mark and mark in example.text:
            raise ValueError(f"text: expected no placeholder {mark!r} in it, got one in {example.key}, remove it")
    texts = [_chat(processor, mark, example) for example in examples]
    images = [list(example.images) for example in examples]
    padding = {"padding": True, "padding_side": "left"} if len(examples) > 1 else {}
    return dict(processor(images=images if any(images) else None, text=texts, return_tensors="pt", **padding))


def _chat(processor: Any, mark: str | None, example: Example) -> str:
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"} for _ in example.images] + [{"type": "text", "text": example.text}]
        return processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{mark or ''}\n" * len(example.images) + example.text


def with_answers(inputs: dict[str, Tensor], answers: Sequence[Sequence[int]], pad: int) -> tuple[dict, Tensor]:
    """The inputs with each row's answer behind its prompt, and which tokens are answers, bool [B, T].

    Rows stay left padded to the prompt and are padded on the right behind the answer; `attention_mask` marks both.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    longest = max(map(len, answers))
    tail = ids.new_tensor([[*answer, *[pad] * (longest - len(answer))] for answer in answers])
    there = mask.new_tensor([[1] * len(answer) + [0] * (longest - len(answer)) for answer in answers])
    full = dict(inputs, input_ids=torch.cat([ids, tail], 1), attention_mask=torch.cat([mask, there], 1))
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        full["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(tail.shape)], 1)
    return full, torch.cat([torch.zeros_like(ids, dtype=torch.bool), there.bool()], 1)
