"""Token Recycling: a static tree from the target's own discarded candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmspec.core.arguments import check_fields
from mmspec.core.tree import static_tree
from mmspec.vlm.drafters.token_recycling.state import RecyclingState
from mmspec.vlm.drafters.token_recycling.table import RecyclingTable
from mmspec.vlm.drafters.token_recycling.templates import small_template
from mmspec.vlm.target import TextTarget


@dataclass(frozen=True, slots=True)
class TokenRecycling:
    """Tree drafts from a table of successors, without a model ("Turning Trash into Treasure: Accelerating Inference of
    Large Language Models with Token Recycling", Luo et al. 2024).

    width: successors remembered per token.
    template: parents of the draft tree, root first; a node's sibling rank picks the successor. See `templates.py`.
    table: None gives every row of every request an empty table, so outputs depend on nothing that ran before; a
        RecyclingTable is read and written by all requests that use this drafter.
    Deterministic, so exact with every exact rule for deterministic trees. Never proposes ids of visual placeholders.
    Raises ValueError for a template wider than the table.
    """

    width: int = 8
    template: tuple[int, ...] = field(default_factory=small_template)
    table: RecyclingTable | None = None

    name = "token_recycling"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        widest = static_tree(self.template).max_rank + 1 if len(self.template) > 1 else 0
        if not 1 <= widest <= self.width:
            raise ValueError(f"template: expected 1 to width={self.width} children a node, got up to {widest}")
        if self.table is not None and self.table.width != self.width:
            raise ValueError(f"table: expected width {self.width}, got {self.table.width}")

    def open(self, target: TextTarget) -> RecyclingState:
        return RecyclingState(self, target)
