"""Messages of a conversation as the processor's chat template writes them, and as model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.io.images import check_image

Message = dict[str, Any]
_PLACEHOLDERS = ("image_token", "video_token", "audio_token")


class ChatWriter:
    """Writes messages with a processor, or with a tokenizer where a conversation is of text alone.

    Args:
        processor: a processor or a tokenizer of transformers with a chat template.

    Raises:
        ValueError: for a processor without a chat template.
    """

    def __init__(self, processor: Any):
        if not callable(getattr(processor, "apply_chat_template", None)) or not getattr(
            processor, "chat_template", None
        ):
            raise ValueError(f"processor: expected one with a chat template, got {type(processor).__name__}; give it one, as "
                             "without it nothing tells who said what")  # fmt: skip
        self.processor, self.tokenizer = processor, getattr(processor, "tokenizer", processor)
        self.is_plain = isinstance(processor, PreTrainedTokenizerBase)
        self._processed: tuple[str, list[Any], Mapping[str, Any]] | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs that the processor makes."""
        return tuple(getattr(self.processor, "model_input_names", ()))

    def message(self, text: str, images: Sequence[Any], role: str) -> Message:
        """Return a message with its pictures before its text.

        Raises:
            ValueError: for a text that is none or holds a placeholder, and for items of `images` that are no pictures or lie
                outside the limits of the gate (`mmspec.io.images`).
        """
        if not isinstance(text, str):
            raise ValueError(f"text: expected words, got {text!r}; pass pictures as images=[...]")
        if isinstance(images, str | bytes) or not isinstance(images, Sequence):
            raise ValueError(
                f"images: expected a list of pictures, got {type(images).__name__}; write images=[picture]"
            )
        marks = (getattr(self.processor, name, None) for name in _PLACEHOLDERS)
        for mark in marks:
            if isinstance(mark, str) and mark and mark in text:
                raise ValueError(
                    f"text: expected no placeholder {mark!r} in it, got one; pass pictures as images=[...]"
                )
        if self.is_plain and images:
            raise ValueError(
                "images: expected none beside a tokenizer, got some; give the session the model's processor"
            )
        for image in images:
            check_image(image)
        if self.is_plain:
            return {"role": role, "content": text}
        return {"role": role, "content": [*({"type": "image"} for _ in images), {"type": "text", "text": text}]}

    def answer(self, ids: Tensor) -> Message:
        """Return the message of the answer `ids`, int64 [L]."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return {"role": "assistant", "content": text if self.is_plain else [{"type": "text", "text": text}]}

    def written(self, messages: Sequence[Message], answering: bool = True) -> str:
        """Return the text of messages, with the beginning of an answer behind them where it is to be answered.

        Raises:
            ValueError: where the chat template refuses the messages.
        """
        try:
            return self.processor.apply_chat_template(messages, add_generation_prompt=answering, tokenize=False)
        except Exception as error:  # templates raise errors of their own
            raise ValueError("messages: expected a conversation that the chat template writes, got "
                             f"{_reason(error)}; change the last message or remove it") from error  # fmt: skip

    def inputs(self, text: str, pictures: Sequence[Any]) -> dict[str, Any]:
        """Return the model inputs of a written conversation. A second call with the same arguments repeats the result.

        Raises:
            ValueError: where the processor refuses the pictures or the text.
        """
        known, self._processed = self._processed, None
        if known and known[0] == text and len(known[1]) == len(pictures) and all(map(_is, known[1], pictures)):
            return dict(known[2])
        settings: dict[str, Any] = {"return_tensors": "pt"}
        begin = getattr(self.tokenizer, "bos_token", None)
        if begin and text.startswith(begin):  # the template has written it
            settings["add_special_tokens"] = False
        try:
            if self.is_plain:
                made = self.processor([text], **settings)
            else:
                made = self.processor(images=[list(pictures)] if pictures else None, text=[text], **settings)
        except Exception as error:  # processors raise errors of many kinds over a picture
            name, what = ("images", "pictures") if pictures else ("text", "words")
            raise ValueError(f"{name}: expected {what} that {type(self.processor).__name__} takes, got {_reason(error)}; pass "
                             "others") from error  # fmt: skip
        self._processed = text, list(pictures), dict(made)
        return dict(made)

    def check(self, messages: Sequence[Message], pictures: Sequence[Any]) -> None:
        """Raise ValueError where the template or the processor refuses a conversation that ends in these messages.

        Behind a message of the system a user is taken to follow: many templates refuse a prompt without one.
        """
        if messages[-1]["role"] != "user":
            messages = [*messages, self.message(".", (), "user")]
        self.inputs(self.written(messages), pictures)

    def tail(self, messages: Sequence[Message], text: str, ids: Tensor) -> int:
        """Return how many of the last `ids` int64 [L] begin the answer: templates may write a given answer otherwise."""
        begun = self.written(messages, answering=False)
        if not text.startswith(begun):
            return 0
        tail = self.tokenizer(text[len(begun) :], add_special_tokens=False)["input_ids"]
        return len(tail) if 0 < len(tail) < len(ids) and ids[-len(tail) :].tolist() == list(tail) else 0


def words_of(message: Message) -> str:
    """Return the text of a message."""
    content = message["content"]
    return content if isinstance(content, str) else content[-1]["text"]


def pictures_in(message: Message) -> int:
    """Return how many pictures a message shows."""
    content = message["content"]
    return 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)


def _is(one: object, other: object) -> bool:
    return one is other


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} ({' '.join(str(error).split())[:200]})"
