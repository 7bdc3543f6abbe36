"""The methods that `mmspec bench continuous` compares, as data."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.evaluate.continuous.decodings import PipelineArguments, decoding_of, rule_names
from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling

PLAIN = "ar"
HEAD_STATES = 8  # states that a call of the head evaluates where its window is one of several parts
# schedules of a model -> the setting that switches each on
PARTS = {
    "head": f"head={HEAD_STATES}",
    "anneal": "annealing=anneal",
    "checkerboard": "checkerboard=1",
    "lazy": "lazy=lazy",
}


@dataclass(frozen=True, slots=True)
class ContinuousMethod(DrawnMethod):
    """A row of a bench.

    Attributes:
        decoding: The decoding as text, see `mmspec.methods.parse`.
        kind: The models it is for, "" for all.
        gamma: The steps that a drafted window has.
        patch: Whether rejected tokens are put right where they stand, so that every window advances by gamma.
        bitwise: Whether its tokens are plain decoding's, bit for bit, at any temperature.
        head: The states that a call of the target's head evaluates beside the decoding; 0 for the decoding's own.
    """

    decoding: str = PLAIN
    kind: str = ""
    gamma: int | None = None
    patch: bool = False
    bitwise: bool = False
    head: int = 0

    def make(self, resources: ContinuousResources) -> PipelineArguments:
        """Arguments of the pipeline; what they need is imported and loaded now."""
        rule = self.rule if self.rule in rule_names() else None
        made = decoding_of(self.decoding, resources, {"rule": rule})
        return made | ({"head_sampling": HeadSampling(self.head)} if self.head else {})

    def row(self) -> dict:
        return {**DrawnMethod.row(self), "gamma": self.gamma}
