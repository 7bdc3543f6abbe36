"""A method `mmspec bench vlm` compares, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmspec.evaluate.engine.suite import Method
from mmspec.evaluate.vlm.resources import VlmResources
from mmspec.evaluate.vlm.variants import DrafterChange

PEER, PLAIN = "hf", "plain"


@dataclass(frozen=True, slots=True)
class VlmMethod(Method):
    """engine: whose loop decodes.   drafter: a name in `drafter_specs` or a folder.   change: what this row changes about the
    drafter.   options: for transformers' generate; a callable is given the resources.
    point: where plots put the row, such as its fixed length.   controlled: its lengths follow measured costs; compared with
    the other rows of the same `rivals`.
    strict: passes over drafts give the bits of single ones.   captured: rounds run without the host.
    widely: runs in every setting of suites that leave out others, see `VlmSuite.narrowed`.
    largest_batch: the engine refuses larger ones; None for any.
    """

    engine: Literal["transformers", "mmspec"] = "mmspec"
    drafter: str = "none"
    change: DrafterChange | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    point: int | None = None
    rivals: str = ""
    controlled: bool = False
    strict: bool = False
    captured: bool = False
    widely: bool = False
    largest_batch: int | None = None

    def row(self) -> dict:
        return {
            "method": self.title,
            "key": self.key,
            "drafter": self.drafter,
            "point": self.point,
            "controlled": self.controlled,
        }

    def build_drafter(self, resources: VlmResources) -> object:
        """The drafter of the row, changed; None for plain decoding.   Raises ValueError where its weights are missing."""
        drafter = resources.drafter(self.drafter)
        return drafter if self.change is None else self.change(drafter)
