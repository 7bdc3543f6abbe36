"""One question about one picture, answered plainly and then with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from mmspec.web.lanes.lane import Lane, last_accepted, run_pair
from mmspec.web.lanes.python_code import caption_code

if TYPE_CHECKING:
    from PIL.Image import Image

    from mmspec.core.round.loop import DecodingRun
    from mmspec.run.vlm_models import VlmResources

EXACT, RELAXED = "exact", "relaxed"


@dataclass(frozen=True, slots=True)
class VlmLaneRequest:
    """A question about an RGB picture."""

    picture: Image
    text: str
    drafter: str = "dspark"  # its name in `mmspec.run.vlm_models`
    law: str = EXACT  # "exact", or "relaxed" for typical acceptance
    temperature: float = 0.0  # 0 is greedy
    seed: int = 0
    tokens: int = 192  # the longest answer

    def code(self) -> str:
        """Return a Python program that gives the answer of the fast lane."""
        from mmspec.run.vlm_models import drafter_specs
        from mmspec.run.vlm_runs import sampling_arguments

        return caption_code(
            self.text,
            self.drafter,
            drafter_specs()[self.drafter].part,
            relaxed=self.law == RELAXED,
            sampling=sampling_arguments(self.temperature),
            seed=self.seed,
            tokens=self.tokens,
        )


@dataclass(slots=True)
class VlmLane(Lane):
    """A lane of text."""

    ids: list[int] = field(default_factory=list)  # the tokens of the answer so far
    text: str = ""  # their text; the marks of the rounds are its pieces


def vlm_lanes(resources: VlmResources, request: VlmLaneRequest, seconds: float) -> Iterator[tuple[VlmLane, VlmLane]]:
    """Decode the plain answer and then the drafted answer, each for at most `seconds`; yield both after every round."""
    from mmspec.run.vlm_models import title_of

    plain, drafted = VlmLane("plain decoding"), VlmLane(title_of(request.drafter))
    starts = (
        partial(_start, resources, request, None, EXACT),
        partial(_start, resources, request, resources.drafter(request.drafter), request.law),
    )
    yield from run_pair((plain, drafted), starts, lambda lane: _TextMarks(lane, resources.tokenizer), seconds)


def _start(resources: VlmResources, request: VlmLaneRequest, drafter: Any, law: str) -> DecodingRun:
    from mmspec.core.round.rules.typical import TypicalAcceptance
    from mmspec.run.vlm_requests import VlmPrompt, encode
    from mmspec.run.vlm_runs import sampling_arguments
    from mmspec.vlm import start

    inputs = encode(resources.processor, [VlmPrompt(request.text, (request.picture,))])
    rule = TypicalAcceptance() if law == RELAXED else EXACT
    how = {"max_new_tokens": request.tokens, **sampling_arguments(request.temperature)}
    return start(resources.model, drafter=drafter, rule=rule, seed=request.seed, **inputs, **how)


class _TextMarks:
    """Adds the tokens of each round to a lane; the marks of a round are its pieces of text."""

    def __init__(self, lane: VlmLane, tokenizer: Any):
        from mmspec.vlm.streaming import TextRuns

        self.lane, self.pieces = lane, []
        self.feed = TextRuns(tokenizer, lambda text, drafted: self.pieces.append((text, drafted)))

    def __call__(self, run: DecodingRun) -> tuple[dict[str, list], int]:
        accepted = last_accepted(run)
        new = run.target.tokens[0][len(self.lane.ids) :]
        self.pieces.clear()
        self.feed.put_run(new, accepted)
        if run.target.done:
            self.feed.end()
        self.lane.ids += new
        self.lane.text += "".join(text for text, _ in self.pieces)
        return {"pieces": list(self.pieces)}, accepted


def identical(plain: VlmLane, fast: VlmLane) -> bool:
    """Return whether both lanes are finished and have the same tokens."""
    return plain.finished and fast.finished and plain.ids == fast.ids


def recommended() -> str:
    """Return the drafter that the zoo recommends for its captioner, which `drafter="auto"` uses too."""
    from mmspec.zoo.files.table import MODELS

    return (MODELS["vlm"].auto or "vlm/msd").removeprefix("vlm/")


def offered(law: str) -> list[tuple[str, str]]:
    """Return the titles and names of the "exact" or "relaxed" drafters, the recommended drafter first."""
    from mmspec.run.vlm_models import drafter_names, title_of

    best = [recommended(), "msd", "eagle"] if law == EXACT else ["recycling", "lookup", "msd"]
    names = [name for name in drafter_names() if name != "none"]
    names.sort(key=lambda name: best.index(name) if name in best else len(best))
    return [(title_of(name), name) for name in names]
