"""The report on a model: plain data for the screen and the JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mmspec.vlm.memory_needs import MemoryNeeds


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a trial or a look-up."""

    name: str
    holds: bool | None  # None where it was not tried
    detail: str = ""  # the evidence or the reason
    seconds: float | None = None  # of the trial, None where nothing ran


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that store the same of earlier tokens."""

    kind: str  # of `LayerSpec`, or the config's name for layers of an unknown form
    count: int
    width: int | None = None  # tokens of their window or chunk, None where they see all tokens


@dataclass(frozen=True, slots=True)
class DrafterFit:
    """A drafter for a model."""

    name: str  # in `mmspec methods`, or its repository
    fits: bool  # it can be trained for the model, or its published sizes fit
    here: bool  # it can be used now
    parameters: int | None = None
    detail: str = ""  # the way to get it, or the reason why it does not fit
    text: str = ""  # for `drafter=` and `--drafter`, "" where it is not available


@dataclass(frozen=True, slots=True)
class DraftedComparison:
    """A request decoded plainly and then with drafts."""

    drafter: str
    tokens: int
    first_difference: int | None  # the first token that differs, counted from 1; None where all tokens are the same
    plain_passes: int
    drafted_passes: int
    plain_s: float
    drafted_s: float
    prompt: str  # in words

    @property
    def identical(self) -> bool:
        return self.first_difference is None


@dataclass(slots=True)
class CheckReport:
    """The report on a model."""

    model: str  # as the user named it
    kind: str  # "text", "text and pictures", "image", "continuous" or "video"
    class_name: str  # of the model or of the pipeline
    supported: bool | None  # "taken" in JSON; None where only loading would tell
    reason: str  # the evidence for that
    loaded: bool = False  # the weights were read
    proofs: list[Finding] = field(default_factory=list)  # the trials at load
    layers: list[LayerGroup] = field(default_factory=list)
    pictures: str = ""  # the way in which pictures enter the model
    drafters: list[DrafterFit] = field(default_factory=list)  # available drafters first
    memory: MemoryNeeds | None = None
    features: list[Finding] = field(default_factory=list)  # trees, strict passes, captured rounds and sessions
    comparison: DraftedComparison | None = None
    notes: list[str] = field(default_factory=list)  # further sentences for the user
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
        fields = asdict(self)
        fields["taken"] = fields.pop("supported")
        if self.comparison is not None:
            fields["comparison"]["identical"] = self.comparison.identical
        return fields
