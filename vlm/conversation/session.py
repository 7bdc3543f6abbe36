"""A conversation with a model: messages and pictures added to one committed cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from torch import Tensor, nn

from mmspec.core.keys import Keys
from mmspec.core.loop import Drafter
from mmspec.core.rules.base import Rule
from mmspec.core.rules.by_name import resolve
from mmspec.io.images import check_image
from mmspec.vlm.admission import check_numbers
from mmspec.vlm.api import generate
from mmspec.vlm.auto import AUTO
from mmspec.vlm.conversation.messages import ChatWriter, pictures_in, words_of
from mmspec.vlm.conversation.past import Past
from mmspec.vlm.distributed import execution_device
from mmspec.vlm.hf_model import unwrapped
from mmspec.vlm.output import Generated

Role = Literal["user", "system"]
_OWN_INPUTS = ("inputs", "input_ids", "inputs_embeds", "attention_mask")


class Session:
    """A conversation whose turns read only what is new: a second question about a picture does not read the picture again.

    Args:
        model: a model of transformers that `generate` takes.
        processor: its processor, or a tokenizer for text alone, with a chat template.
        drafter: the drafter of every turn, as in `generate`.
        rule: the rule of every turn, as in `generate`.
        seed: the seed of every turn, as in `generate`; None draws a new one each time.
        settings: the settings of `generate` for every turn. Those of a call stand above all of these.

    Raises:
        ValueError: for a processor without a chat template, and for settings that `generate` refuses or the session makes.

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
        drafter: Drafter | Literal["auto"] | None = None,
        rule: str | Rule = "exact",
        seed: int | Sequence[int] | None = None,
        **settings: Any,
    ):
        self._writer = ChatWriter(processor)
        self.model, self.processor = model, processor
        self.drafter, self.rule, self.seed, self.settings = drafter, rule, seed, settings
        self._check(self._settings({}))
        self.past_key_values = Past(unwrapped(model))
        self.messages: list[dict[str, Any]] = []
        self.pictures: list[Any] = []
        self.last: Generated | None = None
        self._answered = 0  # messages that the model has read

    def add(self, text: str, images: Sequence[Any] = (), *, role: Role = "user") -> None:
        """Add a message. The processor reads it at once, and a message that it refuses is not added.

        Args:
            text: the words of the message.
            images: the pictures before them: PIL images, arrays or tensors. Files are opened with
                `mmspec.io.images.open_image`; strings and paths are refused, so that a text field is never an address.
            role: who says it, user or system.

        Raises:
            ValueError: for a text that is none or holds a placeholder of pictures, for pictures beside a tokenizer, and for a
                message that the chat template or the processor refuses.
            ImageError: for items that are no pictures or too large. It is a ValueError.
        """
        if role not in get_args(Role):
            raise ValueError(f"role: expected user or system, got {role!r}; the session adds answers itself")
        message = self._writer.message(text, images, role)
        images = [check_image(image) for image in images]
        self._writer.check([*self.messages, message], [*self.pictures, *images])
        self.messages.append(message)
        self.pictures.extend(images)

    def remove_last_message(self) -> dict[str, Any]:
        """Remove the last message with its pictures, and return it.

        Behind an answer, `generate` then answers the same message again. Where the model has read a removed message of the
        user, the next turn reads the whole conversation again.

        Raises:
            ValueError: for a conversation without messages.
        """
        if not self.messages:
            raise ValueError("session: expected a message to remove, got none; add one first")
        message = self.messages.pop()
        del self.pictures[len(self.pictures) - pictures_in(message) :]
        if len(self.messages) < self._answered:
            self._answered = len(self.messages)
            self.forget()
        return message

    def generate(self, **settings: Any) -> Generated:
        """Answer the messages since the last answer. The answer becomes a message itself.

        Args:
            settings: settings of `generate` for this turn; drafter, rule and seed are among them.

        Returns:
            The result of `generate`, with the whole conversation in `sequences`.

        Raises:
            ValueError: where nothing was added, for settings that the session makes itself, and where `generate` raises.
                Then no answer is added.
        """
        if not self.messages or self.messages[-1]["role"] == "assistant":
            raise ValueError("session: expected a message to answer, got none since the last answer; add one first")
        settings = self._settings(settings)
        self._check(settings)
        inputs = self.inputs()
        self._check(settings, tuple(inputs))
        found = generate(self.model, past_key_values=self.past_key_values, **inputs, **settings | {"return_dict": True})
        if found.errors:
            raise ValueError("; ".join(found.errors.values()) + "; ask again, the conversation is as it was before")
        self.last, self._answered = found, len(self.messages)
        self.messages.append(self._writer.answer(found.sequences[0, inputs["input_ids"].shape[1] :]))
        return found

    def ask(self, text: str, images: Sequence[Any] = (), **settings: Any) -> str:
        """Add a message of the user and answer it. Where that fails the message is removed again.

        Args:
            text: the words of the message.
            images: the pictures before them, as in `add`.
            settings: as in `generate`.

        Returns:
            The words of the answer.

        Raises:
            ValueError: as `add` and `generate` do.
        """
        self._check(self._settings(settings))
        with self._restored():
            self.add(text, images)
            self.generate(**settings)
        return words_of(self.messages[-1])

    def forget(self) -> None:
        """Keep the messages and forget what was read of them: the next turn reads all again."""
        self.past_key_values.forget()

    def inputs(self) -> dict[str, Tensor]:
        """Return the whole conversation as model inputs, with the beginning of the next answer."""
        text = self._writer.written(self.messages)
        inputs = self._writer.inputs(text, self.pictures)
        self.past_key_values.tail = self._writer.tail(self.messages, text, inputs["input_ids"][0])
        device = execution_device(unwrapped(self.model).get_input_embeddings())
        return {name: one.to(device) if isinstance(one, Tensor) else one for name, one in inputs.items()}

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a call, those of the session below them."""
        return {"drafter": self.drafter, "rule": self.rule, "seed": self.seed, **self.settings, **settings}

    def _check(self, settings: Mapping[str, Any], inputs: tuple[str, ...] = ()) -> None:
        """Raises ValueError for settings that cannot be served, before anything is read."""
        if "past_key_values" in settings:
            raise ValueError("past_key_values: expected none, since a session has its own, got it as a setting; leave it out, "
                             "or pass the session's own to generate")  # fmt: skip
        for name in (*_OWN_INPUTS, *self._writer.input_names, *inputs):
            if name in settings:
                raise ValueError(f"{name}: expected settings alone, since a session makes its inputs itself, got this input; "
                                 "leave it out")  # fmt: skip
        drafter = settings["drafter"]
        if drafter not in (None, AUTO) and (isinstance(drafter, type) or not hasattr(drafter, "open")):
            raise ValueError(
                f"drafter: expected None, 'auto' or a drafter, got {drafter!r}; make one, such as PromptLookup()"
            )
        resolve(settings["rule"], greedy=False)
        if settings["seed"] is not None:
            Keys.of(settings["seed"], 1)
        check_numbers(settings)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Takes back the messages and pictures that were added inside a block that fails."""
        messages, pictures = len(self.messages), len(self.pictures)
        try:
            yield
        except BaseException:
            del self.messages[messages:], self.pictures[pictures:]
            raise
