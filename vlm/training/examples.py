"""Training examples of drafters: requests with pictures, and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from mmspec.io.images import check_images, open_image
from mmspec.io.records import NOTES, ParsedRequest, check_names, read_records, record_digest, request_in
from mmspec.vlm.conversation.messages import is_tokenizer, special_tokens


@dataclass(frozen=True, slots=True)
class Example:
    """A request, with an answer or without."""

    key: str  # in files of answers
    text: str  # the user's last message
    images: tuple[Image, ...] = ()  # before the user's first text, as `check_images` of `mmspec.io.images`
    answer: str | None = None  # a reference, None if only the target's own is needed
    history: tuple[tuple[str, str], ...] = ()  # (role, text) of earlier turns, perhaps a system's first

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", tuple(check_images(self.images)))

    def digest(self) -> str:
        digest = hashlib.sha256(repr((self.key, self.text, self.answer, self.history)).encode())
        for image in self.images:
            digest.update(f"{image.mode}{image.size}".encode() + image.tobytes())
        return digest.hexdigest()


_FIELDS = ("text", "prompt", "history", "messages", "conversations", "image", "images", "answer", "key", *NOTES)


@dataclass(frozen=True, slots=True)
class JsonExamples:
    """Examples of a JSONL file, an object per line, or of a JSON file with a list of objects.

    A record has a "text" (or "prompt") and optionally "history" (earlier turns as objects of "role" and "content"), or
    a conversation as "messages" or as LLaVA's "conversations", whose last answer is the answer. Further fields are
    "image" or "images" (paths relative to the file), "answer" and "key". Other fields are refused, except notes such as
    "id"."""

    file: Path
    lines: tuple[dict, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        records = []
        for place, record in read_records(self.file):
            check_names(place, record, _FIELDS)
            request_in(place, record)
            records.append(record)
        if not records:
            raise ValueError(f"{self.file}: expected an example per line, got an empty file")
        object.__setattr__(self, "lines", tuple(records))

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Example:
        request = self.request(index)
        images = tuple(open_image(self.file.parent / name) for name in request.images)
        *history, (_, text) = request.turns
        return Example(str(self.lines[index].get("key", index)), text, images, request.answer, tuple(history))

    def request(self, index: int) -> ParsedRequest:
        """Return a record as a request, whose pictures are not opened."""
        return request_in(f"{self.file}, record {index + 1}", self.lines[index])

    def digest(self, index: int) -> str:
        """Return a hash of the contents of an example, which its pictures belong to."""
        return record_digest(self.lines[index], [self.file.parent / name for name in self.request(index).images])


def encode(processor: Any, examples: Sequence[Example]) -> dict[str, Tensor]:
    """Return the inputs of `generate` for a batch of requests, with the processor's chat template and left padding.
    Images that are no pictures are refused, as a processor would download a string."""
    mark = getattr(processor, "image_token", None)
    for example in examples:
        if mark and any(mark in text for text in (example.text, *(turn for _, turn in example.history))):
            raise ValueError(f"text: expected no placeholder {mark!r}, got it in {example.key}; remove it")
    texts = [prompt_text(processor, example) for example in examples]
    images = [list(example.images) for example in examples]
    settings = {"padding": True, "padding_side": "left"} if len(examples) > 1 else {}
    is_chat = bool(getattr(processor, "chat_template", None))
    if is_tokenizer(processor):
        if any(images):
            raise ValueError("images: expected none with a tokenizer, got pictures; open the model with its processor")
        return _left_padded(processor, texts, is_chat)
    settings |= special_tokens(processor, texts[0], is_chat)
    return dict(processor(images=images if any(images) else None, text=texts, return_tensors="pt", **settings))


def _left_padded(tokenizer: Any, texts: Sequence[str], is_chat: bool) -> dict[str, Tensor]:
    """Return ids and mask, int64 [B, P]. Tokenizers without a padding token pad with another token, hidden by the mask."""
    rows = [tokenizer(text, **special_tokens(tokenizer, text, is_chat))["input_ids"] for text in texts]
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad, longest = next(token for token in known if token is not None), max(map(len, rows))
    return {
        "input_ids": torch.tensor([[pad] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }


def prompt_text(processor: Any, example: Example) -> str:
    if getattr(processor, "chat_template", None):
        return render_chat(processor, _messages(example), add_generation_prompt=True)
    earlier = "".join(f"{text}\n" for _, text in example.history)
    return earlier + f"{getattr(processor, 'image_token', None) or ''}\n" * len(example.images) + example.text


def render_chat(processor: Any, messages: list[dict[str, Any]], add_generation_prompt: bool = False) -> str:
    """Return the text of turns with parts in the chat template, with the answer's header if `add_generation_prompt`.
    Templates of text models join strings, those of vision-language models iterate over parts, so a tokenizer gets
    strings."""
    how = {"add_generation_prompt": True} if add_generation_prompt else {}
    if not is_tokenizer(processor):
        return processor.apply_chat_template(messages, **how)
    texts = [{"role": turn["role"], "content": _plain_text(turn["content"])} for turn in messages]
    return processor.apply_chat_template(texts, tokenize=False, **how)


def _plain_text(parts: list[dict[str, Any]]) -> str:
    if any(part["type"] != "text" for part in parts):
        raise ValueError("images: expected none with a tokenizer, got pictures; open the model with its processor")
    return "\n".join(part["text"] for part in parts)


def reference_answer_ids(processor: Any, example: Example) -> list[int]:
    """Return the tokens of the reference answer, the end token included: those after the prompt's when both are
    tokenized as one text, or those of the answer alone if a token spans both. The separator is that of the chat
    template; if it is unknown, a space, unless the prompt ends in white space."""
    if not example.answer:
        raise ValueError(f"example {example.key!r}: expected an answer, got none; use the target's own answers")
    tokenizer, prompt = getattr(processor, "tokenizer", processor), prompt_text(processor, example)
    answer = example.answer.lstrip()
    between = _template_separator(processor, _messages(example), prompt, answer)
    if between is None:
        between = "" if prompt[-1:].isspace() else " "
    answer = between + answer
    own, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + answer))
    if ids[: len(own)] == own and len(ids) > len(own):
        ids = ids[len(own) :]
    else:
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*ids, tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else ids


def _messages(example: Example) -> list[dict[str, Any]]:
    turns = [*example.history, ("user", example.text)]
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    first = next(message for message in messages if message["role"] == "user")
    first["content"] = [{"type": "image"} for _ in example.images] + first["content"]
    return messages


def _template_separator(processor: Any, messages: list[dict[str, Any]], prompt: str, answer: str) -> str | None:
    """Return the white space that a chat template puts between a prompt and its answer; None if it is unknown."""
    if not getattr(processor, "chat_template", None):
        return None
    from jinja2.exceptions import TemplateError

    if is_tokenizer(processor):
        reply = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
        return _separator(render_chat(processor, [*messages, reply]), prompt, answer)
    # some templates expect an answer in parts, some a string
    for content in ([{"type": "text", "text": answer}], answer):
        try:
            whole = processor.apply_chat_template([*messages, {"role": "assistant", "content": content}])
        except (TemplateError, TypeError):
            continue
        if (separator := _separator(whole, prompt, answer)) is not None:
            return separator
    return None


def _separator(whole: str, prompt: str, answer: str) -> str | None:
    """Return the white space between prompt and answer in a conversation's text; None if it does not contain both."""
    behind = whole.removeprefix(prompt)
    stripped = behind.lstrip()
    if len(behind) < len(whole) and stripped.startswith(answer.rstrip()):
        return behind[: len(behind) - len(stripped)]
    return None


def with_answers(inputs: dict[str, Tensor], answers: Sequence[Sequence[int]], pad: int) -> tuple[dict, Tensor]:
    """Return the inputs of `encode` with each row's answer after its prompt, and the tokens of answers, bool [B, T].
    Prompts remain padded on the left, and answers are padded on the right with `pad`; `attention_mask` marks both."""
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
