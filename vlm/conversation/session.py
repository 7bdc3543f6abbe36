"""A conversation with a model: messages and pictures added to one committed cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from mmspec.core.loop import Drafter
from mmspec.core.rules.base import Rule
from mmspec.vlm.api import generate
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.output import Generated
from mmspec.vlm.placed import execution_device
from mmspec.vlm.unwrapping import unwrapped

Role = Literal["user", "system"]


class Session:
    """A conversation whose turns read only what is new: a second question about a picture does not read the picture again.

    model: of transformers, one that `generate` takes.   processor: its processor, or a tokenizer for text alone, with a chat
    template.   drafter, rule: as in `generate`, for every turn.   settings: of `generate`, for every turn; a call's own stand
    above them.

    messages: the conversation, as chat templates read it.   pictures: those shown so far, in their order.
    past_key_values: what has been read, for calls of `generate` by hand (see `Past`, which says what is read again when).
    last: the last turn's result; None before the first.

    Exact with exact rules: greedy tokens are those of a fresh call with the whole conversation. So are sampled ones with the
    same seed where the drafter proposes what it would then (none, prompt lookup, and trained drafters whose slots do not hang
    on later turns, up to rounding); they have the target's law in any case. One conversation and row; keep a session for each.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        *,
        drafter: Drafter | None = None,
        rule: str | Rule = "exact",
        **settings: Any,
    ):
        if not callable(getattr(processor, "apply_chat_template", None)) or not getattr(
            processor, "chat_template", None
        ):
            raise ValueError(f"processor: expected one with a chat template, got {type(processor).__name__}; give it one, as "
                             "without it nothing tells who said what")  # fmt: skip
        self.model, self.processor, self.drafter, self.rule, self.settings = model, processor, drafter, rule, settings
        self.past_key_values = Past(unwrapped(model))
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Any] = []
        self.last: Generated | None = None

    def add(self, text: str, images: Sequence[Any] = (), *, role: Role = "user") -> None:
        """Adds a message, pictures before its text. images: what the processor takes, such as PIL images.

        Raises ValueError for a text that is none or holds the placeholder of pictures, and for pictures beside a tokenizer.
        """
        if not isinstance(text, str):
            raise ValueError(f"text: expected words, got {text!r}; pass pictures as images=[...]")
        if isinstance(images, str) or not isinstance(images, Sequence):
            raise ValueError(
                f"images: expected a list of pictures, got {type(images).__name__}; write images=[picture]"
            )
        mark = getattr(self.processor, "image_token", None)
        if isinstance(mark, str) and mark in text:
            raise ValueError(f"text: expected no placeholder {mark!r} in it, got one; pass pictures as images=[...]")
        plain = isinstance(self.processor, PreTrainedTokenizerBase)
        if plain and images:
            raise ValueError(
                "images: expected none beside a tokenizer, got some; give the session the model's processor"
            )
        content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
        self.messages.append({"role": role, "content": text if plain else content})
        self.pictures.extend(images)

    def generate(self, *, seed: int | None = None, **settings: Any) -> Generated:
        """Answers what was added since the last answer, which becomes a message itself.

        settings: of `generate`. Returns its result with the whole conversation in `sequences`.
        Raises ValueError where nothing was added, and whatever `generate` raises; then no answer is added.
        """
        if not self.messages or self.messages[-1]["role"] == "assistant":
            raise ValueError("session: expected a message to answer, got none since the last answer; add one first")
        settings = self.settings | settings
        inputs = self.inputs()
        found = generate(
            self.model, drafter=self.drafter, rule=self.rule, seed=seed, past_key_values=self.past_key_values,
            **inputs, **settings | {"return_dict": True},
        )  # fmt: skip
        if found.errors:
            raise ValueError("; ".join(found.errors.values()) + "; ask again, the conversation is as it was before")
        self.last = found
        self._say(found.sequences[0, inputs["input_ids"].shape[1] :])
        return found

    def ask(self, text: str, images: Sequence[Any] = (), *, seed: int | None = None, **settings: Any) -> str:
        """Adds a message and answers it; the answer's words. Where that fails the message is taken back."""
        with self._taken_back():
            self.add(text, images)
            self.generate(seed=seed, **settings)
        return self._words(self.messages[-1])

    def forget(self) -> None:
        """Keeps the messages and forgets what was read of them: the next turn reads all again."""
        self.past_key_values.forget()

    def inputs(self) -> dict[str, Tensor]:
        """The whole conversation as model inputs, with the beginning of the next answer."""
        text = self._rendered(True)
        settings = {"return_tensors": "pt"}
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        begin = getattr(tokenizer, "bos_token", None)
        if begin and text.startswith(begin):  # the template has written it
            settings["add_special_tokens"] = False
        if isinstance(self.processor, PreTrainedTokenizerBase):
            inputs = self.processor([text], **settings)
        else:
            inputs = self.processor(images=[self.pictures] if self.pictures else None, text=[text], **settings)
        device = execution_device(unwrapped(self.model).get_input_embeddings())
        inputs = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in inputs.items()}
        self.past_key_values.tail = self._tail(text, inputs["input_ids"][0], tokenizer)
        return inputs

    def _rendered(self, answering: bool) -> str:
        return self.processor.apply_chat_template(self.messages, add_generation_prompt=answering, tokenize=False)

    def _tail(self, text: str, ids: Tensor, tokenizer: PreTrainedTokenizerBase) -> int:
        """How many of the last ids begin the answer: templates may render an answer given otherwise."""
        begun = self._rendered(False)
        if not text.startswith(begun):
            return 0
        tail = tokenizer(text[len(begun) :], add_special_tokens=False)["input_ids"]
        return len(tail) if 0 < len(tail) < len(ids) and ids[-len(tail) :].tolist() == list(tail) else 0

    def _say(self, ids: Tensor) -> None:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
        plain = isinstance(self.processor, PreTrainedTokenizerBase)
        self.messages.append({"role": "assistant", "content": text if plain else [{"type": "text", "text": text}]})

    @staticmethod
    def _words(message: dict[str, Any]) -> str:
        content = message["content"]
        return content if isinstance(content, str) else content[-1]["text"]

    @contextmanager
    def _taken_back(self):
        messages, pictures = len(self.messages), len(self.pictures)
        try:
            yield
        except BaseException:
            del self.messages[messages:], self.pictures[pictures:]
            raise
