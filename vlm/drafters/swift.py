"""SWIFT: the target without some of its sub-layers drafts for the whole target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mmspec.core.length.controls import ConfidenceStop, LengthControl
from mmspec.io.validation import Range, Size, check_fields
from mmspec.methods import method, value_of
from mmspec.vlm.drafters.layer_search import LayerSet, SearchingState
from mmspec.vlm.partial_passes import check_partial, first_exit
from mmspec.vlm.target import TextTarget


@method(
    "swift",
    domain="vlm",
    kind="drafter",
    title="SWIFT",
    exact=True,
    drafts=("sampled chain",),
    steps=("part", 55, 0),
    about="the target itself without some of its sub-layers, which are searched while it serves",
    order=24,
    paper="SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration",
)
@dataclass(frozen=True, slots=True)
class Swift:
    """Chain drafts of the target without some attentions and MLPs, without training. Exact.

    Paper: "SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration". After a round, another set of
    sub-layers is scored on the latest generated tokens, and the best is kept. The drafts of a row depend on the rows of its
    batch, which share the set; its distribution does not. The public code's side branches are left out.

    Args:
        skip: The share of the sub-layers to leave out, apart from those of the first and the last layer.
        window: The generated tokens on which a set is scored.
        length: The controller of the chain's length; None for (confidence:threshold=0.8,longest=25).
        layer_set: None gives every request a new search; all requests of this drafter share a LayerSet.

    Raises:
        ValueError: The share or the window is out of range, or, on use, the target's layers cannot be left out.
    """

    skip: Annotated[float, Range(0, below=1, hint="SWIFT uses 0.45")] = 0.45
    window: Size = 32
    length: LengthControl | str | None = None
    layer_set: LayerSet | None = None

    name = "swift"
    from_ids = True

    def __post_init__(self) -> None:
        length = ConfidenceStop(0.8, longest=25) if self.length is None else value_of(self.length, "vlm", "controller")
        object.__setattr__(self, "length", length)
        check_fields(self)

    def open(self, target: TextTarget) -> SearchingState:
        parts = target.parts
        check_partial(parts, first_exit(parts))
        layer_set = LayerSet(parts.layers, self.skip) if self.layer_set is None else self.layer_set
        if layer_set.count != parts.layers:
            raise ValueError(
                f"layer_set: expected {parts.layers} layers as in the target, got {layer_set.count}; "
                "use one set per model"
            )
        return SearchingState(target, self.length, layer_set, self.window)
