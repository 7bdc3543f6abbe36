"""Messages of a conversation, as text of the processor's chat template and as model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL.Image import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.io.images import check_images

Message = dict[str, Any]
_PLACEHOLDERS = ("image_token", "video_token", "audio_token")


def is_tokenizer(processor: Any) -> bool:
    """Return whether `processor` is a tokenizer of text alone, not a processor of pictures and text."""
    return isinstance(processor, PreTrainedTokenizerBase)


def special_tokens(processor: Any, text: str, is_chat: bool) -> dict[str, bool]:
    """Return the argument that keeps a processor or a tokenizer from adding special tokens that a text has already. The
    rule is that of `apply_chat_template` with `tokenize=True`, for all prompts of this package. A tokenizer adds none
    to the text of its chat template, and nobody adds any behind a beginning-of-sentence token."""
    begin = getattr(getattr(processor, "tokenizer", processor), "bos_token", None)
    is_complete = (is_chat and is_tokenizer(processor)) or bool(begin and text.startswith(begin))
    return {"add_special_tokens": False} if is_complete else {}


class ChatWriter:
    """Converts messages to text and model inputs, with a processor or, for text alone, a tokenizer, that has a chat
    template."""

    def __init__(self, processor: Any):
        if not callable(getattr(processor, "apply_chat_template", None)) or not getattr(
            processor, "chat_template", None
        ):
            raise ValueError(
                f"processor: expected a processor with a chat template, got {type(processor).__name__}; set its "
                "chat_template, which marks the speakers"
            )
        self.processor, self.tokenizer = processor, getattr(processor, "tokenizer", processor)
        self.is_plain = is_tokenizer(processor)
        self._processed: tuple[str, list[Any], Mapping[str, Any]] | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(getattr(self.processor, "model_input_names", ()))

    def message(self, text: str, images: Sequence[Any], role: str) -> tuple[Message, list[Image]]:
        """Return a message with its pictures before its text, and the pictures in 8-bit RGB within the limits of
        `mmspec.io.images`. A text with a placeholder is refused."""
        if not isinstance(text, str):
            raise ValueError(f"text: expected a string, got {text!r}; pass pictures as images=[...]")
        pictures = check_images(images)
        marks = (getattr(self.processor, name, None) for name in _PLACEHOLDERS)
        for mark in marks:
            if isinstance(mark, str) and mark and mark in text:
                raise ValueError(
                    f"text: expected no placeholder {mark!r}, got a text with it; pass pictures as images=[...]"
                )
        if self.is_plain and pictures:
            raise ValueError(
                "images: expected none with a tokenizer, got pictures; create the session with the model's processor"
            )
        if self.is_plain:
            return {"role": role, "content": text}, []
        parts = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
        return {"role": role, "content": parts}, pictures

    def answer(self, ids: Tensor) -> Message:
        """Return the message of the answer `ids`, int64 [L]."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return {"role": "assistant", "content": text if self.is_plain else [{"type": "text", "text": text}]}

    def written(self, messages: Sequence[Message], answering: bool = True) -> str:
        """Return the text of messages, followed by the beginning of an answer if `answering`."""
        try:
            return self.processor.apply_chat_template(messages, add_generation_prompt=answering, tokenize=False)
        except Exception as error:  # templates raise errors of their own
            raise ValueError(
                "messages: expected a conversation that the chat template supports, got "
                f"{_reason(error)}; change the last message or remove it"
            ) from error

    def inputs(self, text: str, pictures: Sequence[Any]) -> dict[str, Any]:
        """Return the model inputs of a conversation's text; a second call with the same arguments reuses the result."""
        known, self._processed = self._processed, None
        if known and known[0] == text and len(known[1]) == len(pictures) and all(map(_is, known[1], pictures)):
            return dict(known[2])
        settings: dict[str, Any] = {"return_tensors": "pt", **special_tokens(self.processor, text, is_chat=True)}
        try:
            if self.is_plain:
                inputs = self.processor([text], **settings)
            else:
                inputs = self.processor(images=[list(pictures)] if pictures else None, text=[text], **settings)
        except Exception as error:  # processors raise many kinds of errors for a picture
            name, kind = ("images", "pictures") if pictures else ("text", "a text")
            raise ValueError(
                f"{name}: expected {kind} that {type(self.processor).__name__} supports, got {_reason(error)}; "
                f"pass other {'pictures' if pictures else 'text'}"
            ) from error
        self._processed = text, list(pictures), dict(inputs)
        return dict(inputs)

    def check(self, messages: Sequence[Message], pictures: Sequence[Any]) -> None:
        """Check that the template and the processor support a conversation that ends in these messages. After a system
        message, a user message is assumed to follow, since many templates refuse a prompt without it."""
        if messages[-1]["role"] != "user":
            messages = [*messages, self.message(".", (), "user")[0]]
        self.inputs(self.written(messages), pictures)

    def tail(self, messages: Sequence[Message], text: str, ids: Tensor) -> int:
        """Return the number of last `ids`, int64 [L], that begin the answer; a template may render an answer otherwise."""
        begun = self.written(messages, answering=False)
        if not text.startswith(begun):
            return 0
        tail = self.tokenizer(text[len(begun) :], add_special_tokens=False)["input_ids"]
        return len(tail) if 0 < len(tail) < len(ids) and ids[-len(tail) :].tolist() == list(tail) else 0


def words_of(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def pictures_in(message: Message) -> int:
    content = message["content"]
    return 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)


def _is(first: object, second: object) -> bool:
    return first is second


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} ({' '.join(str(error).split())[:200]})"
