"""Requests of a user about documents: texts that stand in the prompt, and pages of the zoo's world that are read again.

A text model quotes a sentence of a text, corrects its spelling and makes a table of it, one request after the other, as a
user does with a document at hand. The hybrid of the zoo transcribes pages; a page is asked for in all phrasings in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmspec.evaluate.vlm.requests import VlmTask, held_out_documents
from mmspec.io.readers import read_json
from mmspec.run.vlm_models import HYBRID
from mmspec.run.vlm_requests import VlmPrompt
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.documents import page

_FILE = Path(__file__).with_name("documents.json")


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A text of 150 to 300 words, written for this suite and absent from all training sets."""

    text: str  # without mistakes
    question: str  # a sentence of the text answers it
    columns: str  # of a table of its facts
    mistakes: tuple[tuple[str, str], ...]  # pairs (right, wrong) of words for the request to correct the text

    @property
    def misspelt(self) -> str:
        """Return the text with its mistakes, each in the first place where its word occurs."""
        text = self.text
        for right, wrong in self.mistakes:
            text = text.replace(right, wrong, 1)
        return text

    def requests(self) -> Iterator[VlmPrompt]:
        """Yield the requests about the document, in the order of a user."""
        question = f"Quote the sentence of this text that answers the question: {self.question}"
        yield VlmPrompt(f"{self.text}\n\n{question}")
        yield VlmPrompt(f"Correct the spelling mistakes in this text and write out the whole text:\n\n{self.misspelt}")
        yield VlmPrompt(f"Make a table of the facts in this text, with the columns {self.columns}:\n\n{self.text}")


@cache
def text_documents() -> tuple[TextDocument, ...]:
    return tuple(
        TextDocument(
            document["text"], document["question"], document["columns"], tuple(map(tuple, document["mistakes"]))
        )
        for document in read_json(_FILE)["documents"]
    )


def document_requests(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return the first `count` requests about documents, all of a document before the next; `seed` chooses the first
    document."""
    known = text_documents()
    first = seed % len(known)
    prompts = [prompt for document in known[first:] + known[:first] for prompt in document.requests()]
    if not 1 <= count <= len(prompts):
        raise ValueError(f"--prompts: expected 1 to {len(prompts)} about documents, got {count}, change it")
    return prompts[:count]


def pages_again(count: int, seed: int = 0) -> list[VlmPrompt]:
    """Return `count` requests to transcribe held-out pages; a page is asked for in every phrasing before the next."""
    times = len(TRANSCRIBE)
    shown = [(page(document),) for document in held_out_documents(-(-count // times), seed)]
    return [VlmPrompt(TRANSCRIBE[index % times], shown[index // times]) for index in range(count)]


DOCUMENT_REQUESTS = VlmTask("documents", document_requests, 128, pictures=0, most=24)
PAGES_AGAIN = VlmTask("documents", pages_again, 144, only=HYBRID)
