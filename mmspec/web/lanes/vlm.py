"""One question about one picture, answered plainly and then with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.web.lanes.lane import Lane, last_accepted, run_pair

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.core.loop import DecodingRun
    from mmspec.evaluate.vlm.resources import VlmResources

EXACT, RELAXED = "exact", "relaxed"


@dataclass(frozen=True, slots=True)
class VlmLaneRequest:
    """picture: RGB.   drafter: its name in `mmspec.evaluate.vlm.resources`.   law: "exact", or "relaxed" for typical
    acceptance.   temperature: 0 is greedy.   tokens: the longest answer.
    """

    picture: Image
    text: str
    drafter: str = "msd"
    law: str = EXACT
    temperature: float = 0.0
    seed: int = 0
    tokens: int = 192


@dataclass(slots=True)
class VlmLane(Lane):
    """ids: of the answer so far.   text: of them; marks hold its pieces."""

    ids: list[int] = field(default_factory=list)
    text: str = ""


def vlm_lanes(resources: VlmResources, request: VlmLaneRequest, seconds: float) -> Iterator[tuple[VlmLane, VlmLane]]:
    """The plain answer and then the drafted one, as they grow.

    seconds: that each may take.   Raises ValueError for what the model or the drafter refuses.
    """
    from mmspec.evaluate.vlm.resources import title_of

    plain, drafted = VlmLane("plain decoding"), VlmLane(title_of(request.drafter))
    starts = (
        partial(_start, resources, request, None, EXACT),
        partial(_start, resources, request, resources.drafter(request.drafter), request.law),
    )
    yield from run_pair((plain, drafted), starts, lambda lane: _TextMarks(lane, resources.tokenizer), seconds)


def _start(resources: VlmResources, request: VlmLaneRequest, drafter: Any, law: str) -> DecodingRun:
    from mmspec.core.rules.typical import TypicalAcceptance
    from mmspec.evaluate.vlm.requests import VlmPrompt, encode
    from mmspec.evaluate.vlm.runner import sampling_arguments
    from mmspec.vlm import start

    inputs = encode(resources.processor, [VlmPrompt(request.text, (request.picture,))])
    rule = TypicalAcceptance() if law == RELAXED else EXACT
    how = {"max_new_tokens": request.tokens, **sampling_arguments(request.temperature)}
    return start(resources.model, drafter=drafter, rule=rule, seed=request.seed, **inputs, **how)


class _TextMarks:
    """Told of every round, adds its tokens to the lane; returns its pieces of text as marks."""

    def __init__(self, lane: VlmLane, tokenizer: Any):
        from mmspec.vlm.streaming import TextRuns

        self.lane, self.pieces = lane, []
        self.feed = TextRuns(tokenizer, lambda text, drafted: self.pieces.append((text, drafted)))

    def __call__(self, run: DecodingRun) -> tuple[dict[str, list], int]:
        kept = last_accepted(run)
        new = run.target.tokens[0][len(self.lane.ids) :]
        self.pieces.clear()
        self.feed.put_run(new, kept)
        if run.target.done:
            self.feed.end()
        self.lane.ids += new
        self.lane.text += "".join(text for text, _ in self.pieces)
        return {"pieces": list(self.pieces)}, kept


def identical(one: VlmLane, other: VlmLane) -> bool:
    """Whether both are finished and have the same tokens."""
    return one.finished and other.finished and one.ids == other.ids


def offered(law: str) -> list[tuple[str, str]]:
    """(title, name) of the drafters to choose from, the zoo's best first."""
    from mmspec.evaluate.vlm.resources import drafter_names, title_of

    first = ["msd", "eagle", "vispec"] if law == EXACT else ["recycling", "lookup", "msd"]
    known = [name for name in drafter_names() if name != "none"]
    return [
        (title_of(name), name) for name in sorted(known, key=lambda name: first.index(name) if name in first else 9)
    ]
