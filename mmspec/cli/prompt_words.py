"""The warning of commands on words of a prompt that a model does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmspec.cli.console import say
from mmspec.io.prompt_words import tokenizer_of, unknown_words

# prompts that the zoo's models draw as asked
IMAGE_EXAMPLE = "a large red star on a navy background"
VIDEO_EXAMPLE = "a red circle moves to the right"


def warn_of_unknown_words(pipeline: Any, prompts: Iterable[Any], example: str) -> None:
    """Print a warning on stderr that lists the words of the prompts that a pipeline does not know.

    Args:
        pipeline: An image or video pipeline; without a tokenizer nothing is printed.
        prompts: The prompts; labels are skipped.
        example: A prompt that works, "" for none.
    """
    tokenizer = tokenizer_of(pipeline)
    words = unknown_words(tokenizer, [text for text in prompts if isinstance(text, str)])
    if words:
        advice = f'; a prompt that works: "{example}"' if example else ""
        listed = ", ".join(map(repr, words))
        say(
            f"Warning: the model does not know {listed} and draws the rest of the prompt{advice}", "yellow", stderr=True
        )
