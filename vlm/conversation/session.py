"""A conversation with a model: messages and pictures added to one committed cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, Literal, get_args

from torch import Tensor, nn

from mmspec.core.layers.compat import CACHE
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Drafter
from mmspec.core.round.rules.base import Rule
from mmspec.core.round.rules.by_name import resolve
from mmspec.vlm.admission import check_numbers
from mmspec.vlm.api import generate
from mmspec.vlm.auto import AUTO
from mmspec.vlm.conversation.messages import ChatWriter, pictures_in, words_of
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.distributed import execution_device
from mmspec.vlm.hf_model import class_generate, unwrapped
from mmspec.vlm.output import Generated

Role = Literal["user", "system"]
_OWN_INPUTS = ("inputs", "input_ids", "inputs_embeds", "attention_mask")


class Session:
    """A conversation whose turns read only new tokens: a further question about a picture does not read the picture again.

    Exact with exact rules: greedy tokens equal those of a new call with the whole conversation, and sampled tokens have the
    target's distribution. With a seed, sampled tokens are equal too if the drafter proposes the same draft: plain decoding,
    prompt lookup and, up to rounding, trained drafters whose slots do not depend on later turns. A session has a single
    row; use a session for each conversation.

    Args:
        model: a transformers model that `generate` supports.
        processor: its processor, or a tokenizer for text alone, with a chat template.
        drafter: the drafter of every turn, as in `generate`.
        rule: the rule of every turn, as in `generate`.
        seed: the seed of every turn, as in `generate`; None draws a new seed each time.
        **settings: the settings of `generate` for every turn; the settings of a call override all of these.

    Raises:
        ValueError: the model generates no text, the processor has no chat template, or a setting is refused by
            `generate` or set by the session.

    Attributes:
        messages: the conversation in the format of chat templates.
        pictures: the pictures so far, in order.
        past_key_values: the cached conversation for direct calls of `generate`, see `Past`.
        last: the result of the last turn; None before the first turn.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        *,
        drafter: Drafter | Literal["auto"] | None = None,
        rule: str | Rule = "exact",
        seed: int | Sequence[int] | None = None,
        **settings: Any,
    ):
        class_generate(model)  # refuses an object that is no model
        self._writer = ChatWriter(processor)
        self.model, self.processor = model, processor
        self.drafter, self.rule, self.seed, self.settings = drafter, rule, seed, settings
        self._check(self._settings({}))
        self.past_key_values = Past(unwrapped(model))
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Any] = []
        self.last: Generated | None = None
        self._answered = 0  # number of messages that the model has read

    def __copy__(self) -> Session:
        """Share the model, processor, drafter, settings and pictures; the copy goes on independently."""
        new = object.__new__(type(self))
        past = copy(self.past_key_values)
        own = {"_writer": copy(self._writer), "messages": deepcopy(self.messages), "pictures": list(self.pictures)}
        vars(new).update(vars(self) | own | {"past_key_values": past, "settings": dict(self.settings)})
        if self.last is not None and getattr(self.last, CACHE) is self.past_key_values:
            new.last = replace(self.last, **{CACHE: past})
        return new

    def __deepcopy__(self, memo: dict[int, object]) -> Session:
        new = memo[id(self)] = copy(self)
        return new

    def __reduce_ex__(self, protocol: int) -> tuple:
        raise ValueError(
            "session: expected an object that can be pickled, got a conversation with a model; store its "
            "messages and add them to a new session"
        )

    def add(self, text: str, images: Sequence[Any] = (), *, role: Role = "user") -> None:
        """Add a message, which the processor reads at once; a message that it refuses is not added.

        Args:
            text: the text of the message.
            images: the pictures before the text: PIL images, arrays or tensors, or a stack of pictures; see `check_image`
                of `mmspec.io.images` for shapes and ranges. Files are opened with
                `mmspec.io.images.open_image`; strings and paths are refused, so that a text field is never an address.
            role: the speaker, user or system.

        Raises:
            ValueError: the text is not a string or contains a placeholder, pictures come with a tokenizer, or the chat
                template or processor refuses the message.
            ImageError: (a ValueError) an item of `images` is not a picture or is too large.
        """
        if role not in get_args(Role):
            raise ValueError(f"role: expected user or system, got {role!r}; the session itself adds answers")
        message, pictures = self._writer.message(text, images, role)
        self._writer.check([*self.messages, message], [*self.pictures, *pictures])
        self.messages.append(message)
        self.pictures.extend(pictures)

    def remove_last_message(self) -> dict[str, Any]:
        """Remove the last message with its pictures, and return it. After removing an answer, `generate` answers the
        same message again. If the model has read a removed user message, the next turn reads the whole conversation
        again."""
        if not self.messages:
            raise ValueError("session: expected a message to remove, got none; add one first")
        message = self.messages.pop()
        del self.pictures[len(self.pictures) - pictures_in(message) :]
        if len(self.messages) < self._answered:
            self._answered = len(self.messages)
            self.forget()
        return message

    def generate(self, **settings: Any) -> Generated:
        """Answer the messages since the last answer, and add the answer as a message; if that fails, none is added.
        Settings such as drafter, rule and seed are for this turn. The result has the whole conversation in `sequences`.
        """
        if not self.messages or self.messages[-1]["role"] == "assistant":
            raise ValueError("session: expected a message to answer, got none since the last answer; add one first")
        settings = self._settings(settings)
        self._check(settings)
        inputs = self.inputs()
        self._check(settings, tuple(inputs))
        result = generate(
            self.model, past_key_values=self.past_key_values, **inputs, **settings | {"return_dict": True}
        )
        if result.errors:
            raise ValueError("; ".join(result.errors.values()) + "; ask again, the conversation has not changed")
        self.last, self._answered = result, len(self.messages)
        self.messages.append(self._writer.answer(result.sequences[0, inputs["input_ids"].shape[1] :]))
        return result

    def ask(self, text: str, images: Sequence[Any] = (), **settings: Any) -> str:
        """Add a user message with pictures as in `add`, and return the text of its answer; if that fails, the message
        is removed again. Settings are those of this turn, as in `generate`."""
        self._check(self._settings(settings))
        with self._restored():
            self.add(text, images)
            self.generate(**settings)
        return words_of(self.messages[-1])

    def forget(self) -> None:
        """Clear the cache but not the messages, so that the next turn reads all of them again."""
        self.past_key_values.forget()

    def inputs(self) -> dict[str, Tensor]:
        """Return the whole conversation as model inputs, with the beginning of the next answer."""
        text = self._writer.written(self.messages)
        inputs = self._writer.inputs(text, self.pictures)
        self.past_key_values.tail = self._writer.tail(self.messages, text, inputs["input_ids"][0])
        device = execution_device(unwrapped(self.model).get_input_embeddings())
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"drafter": self.drafter, "rule": self.rule, "seed": self.seed, **self.settings, **settings}

    def _check(self, settings: Mapping[str, Any], inputs: tuple[str, ...] = ()) -> None:
        """Refuse unsupported settings before anything is read."""
        if {"past_key_values", "cache"} & set(settings):
            raise ValueError(
                "past_key_values: expected none, since a session has its own, got a setting; leave it out, or "
                "pass the session's own to mmspec.generate"
            )
        for name in (*_OWN_INPUTS, *self._writer.input_names, *inputs):
            if name in settings:
                raise ValueError(
                    f"{name}: expected settings alone, since a session creates its inputs, got this input; leave it out"
                )
        drafter = settings["drafter"]
        if drafter not in (None, AUTO) and (isinstance(drafter, type) or not hasattr(drafter, "open")):
            raise ValueError(
                f"drafter: expected None, 'auto' or a drafter, got {drafter!r}; pass a drafter, such as PromptLookup()"
            )
        resolve(settings["rule"], greedy=False)
        if settings["seed"] is not None:
            Keys.of(settings["seed"], 1)
        check_numbers(settings)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Remove the messages and pictures added inside the block if it fails."""
        messages, pictures = len(self.messages), len(self.pictures)
        try:
            yield
        except BaseException:
            del self.messages[messages:], self.pictures[pictures:]
            raise
