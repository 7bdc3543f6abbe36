"""What a caller says is to be seen, row by row and from block to block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mmspec.core.arguments import whole
from mmspec.video.decoding.script import Prompt

Prompts = str | Sequence[str] | Tensor


def rows_of(prompts: Prompts, rows: int | None = None, name: str = "prompts") -> list[Prompt]:
    """One prompt a row: of a text, texts, or states float [B, L, d].

    rows: how many there must be; one for all where it is a single text. None for as many as there are.
    Raises ValueError for anything else.
    """
    if isinstance(prompts, str):
        return [prompts] * (rows or 1)
    if isinstance(prompts, Tensor):
        found = [prompts[row : row + 1] for row in range(len(prompts))] if prompts.dim() == 3 else []
    elif isinstance(prompts, Sequence):
        found = [one for one in prompts if isinstance(one, str)]
        found = found if len(found) == len(prompts) else []
    else:
        found = []
    if not found or rows is not None and len(found) != rows:
        wanted = "texts or float [B, L, d]" if rows is None else f"one text or {rows}"
        got = tuple(prompts.shape) if isinstance(prompts, Tensor) else f"{prompts!r:.60}"
        raise ValueError(f"{name}: expected {wanted}, got {got}; give one a video")
    return found


def by_block(
    first: Sequence[Prompt], later: Mapping[int, Prompts] | None, blocks: int, name: str
) -> list[dict[int, Prompt]]:
    """Per row, from which block on there is which prompt.   Raises ValueError for a block the video does not have."""
    timeline = [{0: prompt} for prompt in first]
    if not isinstance(later, Mapping | None):
        raise ValueError(
            f"{name}: expected prompts by the block from which on they hold, got {later!r:.60}; pass a dict"
        )
    for block, prompts in sorted((whole(name, block), prompts) for block, prompts in (later or {}).items()):
        if not 0 <= block < blocks:
            raise ValueError(f"{name}: expected blocks 0 to {blocks - 1}, got {block}; name one of the video's")
        for row, prompt in zip(timeline, rows_of(prompts, len(timeline), name), strict=True):
            row[block] = prompt
    return timeline


def judged(
    shown: Sequence[Mapping[int, Prompt]], given: Prompts | Mapping[int, Prompts] | None, blocks: int
) -> list[dict[int, str]] | None:
    """Per row, what blocks are scored by: what is shown, but where `given` says it in other words. None where a row is left
    without words."""
    more = dict(given) if isinstance(given, Mapping) else {} if given is None else {0: given}
    told = by_block([rows[0] for rows in shown], more, blocks, "reward_prompt")
    found = [{**rows, **own} for rows, own in zip(shown, told, strict=True)]
    return found if all(isinstance(one, str) for rows in found for one in rows.values()) else None
