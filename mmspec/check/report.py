"""The report on a model: plain data, which the screen and the JSON file show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried or looked up.

    Attributes:
        name: What it is about.
        holds: Whether it does; None where it was not tried.
        detail: How it was found, or the reason.
        seconds: How long the trial took, None where nothing ran.
    """

    name: str
    holds: bool | None
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same of earlier tokens.

    Attributes:
        kind: As in `LayerSpec`, or a name of the config's for layers of which no form is known.
        count: How many there are.
        width: Tokens of their window or chunk, None where they see all.
    """

    kind: str
    count: int
    width: int | None = None


@dataclass(frozen=True, slots=True)
class DrafterFit:
    """A drafter that the model can have.

    Attributes:
        name: Its name in `mmspec methods`, or its repository.
        fits: Whether one can be made for the model, or a published one has its sizes.
        here: Whether it can be used now.
        parameters: Its weights, as a number; None where none are known.
        detail: How to get it, or why it does not fit.
        text: What `drafter=` and `--drafter` take, "" where it is not here.
    """

    name: str
    fits: bool
    here: bool
    parameters: int | None = None
    detail: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes.

    Attributes:
        dtype: The precision that the others are for.
        parameters: Of the whole model.
        weights: Bytes of them.
        per_token: Bytes of keys and values that a token of a row takes; None where the class could not be asked.
        per_row: Bytes of recurrent and convolution states of a row; None as `per_token`.
        note: What these figures leave out.
    """

    dtype: str
    parameters: int
    weights: int
    per_token: int | None = None
    per_row: int | None = None
    note: str = ""

    def of_request(self, tokens: int) -> int | None:
        """Bytes that a row of so many tokens takes."""
        return None if self.per_token is None else self.per_token * tokens + (self.per_row or 0)


@dataclass(frozen=True, slots=True)
class DraftedComparison:
    """The same request decoded plainly and with drafts, one after the other.

    Attributes:
        drafter: The drafter's name.
        tokens: How many tokens were generated.
        first_difference: The first token that differs, counted from 1; None where all are the same.
        plain_passes, drafted_passes: Passes of the model.
        plain_s, drafted_s: Seconds of the calls.
        prompt: What was asked.
    """

    drafter: str
    tokens: int
    first_difference: int | None
    plain_passes: int
    drafted_passes: int
    plain_s: float
    drafted_s: float
    prompt: str

    @property
    def identical(self) -> bool:
        return self.first_difference is None


@dataclass(slots=True)
class CheckReport:
    """What is known of a model.

    Attributes:
        model: As the user named it.
        kind: "text", "text and pictures", "image", "continuous" or "video".
        class_name: The class of the model or of the pipeline.
        taken: Whether it can be decoded with drafts; None where only loading would tell.
        reason: How that is known.
        loaded: Whether the weights were read.
        proofs: The trials at load.
        layers: The layers by kind.
        pictures: What pictures are to the model.
        drafters: Drafters by name, those that are here first.
        memory: What it takes, None where no size is known.
        features: Trees, strict passes, captured rounds and sessions.
        comparison: Plain against drafted decoding, None where nothing was decoded.
        notes: Whatever else a user should know.
        next_commands: What to type next.
        seconds: How long the check took.
    """

    model: str
    kind: str
    class_name: str
    taken: bool | None
    reason: str
    loaded: bool = False
    proofs: list[Finding] = field(default_factory=list)
    layers: list[LayerGroup] = field(default_factory=list)
    pictures: str = ""
    drafters: list[DrafterFit] = field(default_factory=list)
    memory: MemoryNeeds | None = None
    features: list[Finding] = field(default_factory=list)
    comparison: DraftedComparison | None = None
    notes: list[str] = field(default_factory=list)
    next_commands: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_precise(self) -> bool:
        """Whether the model was decoded in a precision in which drafts must not change a greedy token."""
        return self.memory is not None and self.memory.dtype in ("float32", "float64")

    @property
    def is_sound(self) -> bool:
        """Whether nothing speaks against decoding with drafts."""
        differs = self.comparison is not None and not self.comparison.identical
        return self.taken is not False and not (differs and self.is_precise)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        made = asdict(self)
        if self.comparison is not None:
            made["comparison"]["identical"] = self.comparison.identical
        return made
