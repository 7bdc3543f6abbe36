"""The report on a model: plain data for the screen and the JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mmspec.vlm.memory_needs import MemoryNeeds


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a trial or a look-up.

    Attributes:
        name: The feature or the proof.
        holds: Whether it holds; None where it was not tried.
        detail: The evidence or the reason.
        seconds: The seconds of the trial, None where nothing ran.
    """

    name: str
    holds: bool | None
    detail: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that store the same of earlier tokens.

    Attributes:
        kind: A kind of `LayerSpec`, or the config's name for layers of an unknown form.
        count: The number of layers.
        width: The tokens of their window or chunk, None where they see all tokens.
    """

    kind: str
    count: int
    width: int | None = None


@dataclass(frozen=True, slots=True)
class DrafterFit:
    """A drafter for a model.

    Attributes:
        name: Its name in `mmspec methods`, or its repository.
        fits: Whether it can be trained for the model, or its published sizes fit the model.
        here: Whether it can be used now.
        parameters: The number of its weights, None where it is unknown.
        detail: The way to get it, or the reason why it does not fit.
        text: Its text for `drafter=` and `--drafter`, "" where it is not available.
    """

    name: str
    fits: bool
    here: bool
    parameters: int | None = None
    detail: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class DraftedComparison:
    """A request decoded plainly and then with drafts.

    Attributes:
        drafter: The drafter's name.
        tokens: The number of generated tokens.
        first_difference: The first token that differs, counted from 1; None where all tokens are the same.
        plain_passes, drafted_passes: The passes of the model.
        plain_s, drafted_s: The seconds of the calls.
        prompt: The prompt in words.
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
        """Whether drafted decoding gave the tokens of plain decoding."""
        return self.first_difference is None


@dataclass(slots=True)
class CheckReport:
    """The report on a model.

    Attributes:
        model: The model as the user named it.
        kind: "text", "text and pictures", "image", "continuous" or "video".
        class_name: The class of the model or of the pipeline.
        supported: Whether it can be decoded with drafts, "taken" in JSON; None where only loading would tell.
        reason: The evidence for that.
        loaded: Whether the weights were read.
        proofs: The trials at load.
        layers: The layers by kind.
        pictures: The way in which pictures enter the model.
        drafters: The drafters, available drafters first.
        memory: Its memory, None where no size is known.
        features: Trees, strict passes, captured rounds and sessions.
        comparison: Plain against drafted decoding, None where nothing was decoded.
        notes: Further sentences for the user.
        next_commands: The next command lines.
        seconds: The seconds of the check.
    """

    model: str
    kind: str
    class_name: str
    supported: bool | None
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
        """Whether the model was decoded in a precision where drafts must not change a greedy token."""
        return self.memory is not None and self.memory.dtype in ("float32", "float64")

    @property
    def is_sound(self) -> bool:
        """Whether the model is not refused, and its drafted tokens do not differ in float32."""
        differs = self.comparison is not None and not self.comparison.identical
        return self.supported is not False and not (differs and self.is_precise)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        fields = asdict(self)
        fields["taken"] = fields.pop("supported")
        if self.comparison is not None:
            fields["comparison"]["identical"] = self.comparison.identical
        return fields
