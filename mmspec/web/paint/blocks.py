"""The blocks of a video: who drew each, and how its draft was scored."""

from __future__ import annotations

from mmspec.web.runs.lane import Lane

ROUTES = {"accepted": "the draft stands", "corrected": "redrawn by the model", "own": "drawn by the model"}


def blocks(lane: Lane) -> str:
    """A tile a block."""
    tiles = []
    for one in lane.rounds:
        for number, name, score in one.marks["blocks"]:
            shown = "no score" if score is None else f"score {score:.3g}"
            tiles.append(
                f'<li class="{name}" data-t="{one.seconds:.4f}"><strong>block {number + 1}</strong> {ROUTES[name]}'
                f'<span class="mm-small">{shown}, {one.seconds:.2f} s</span></li>'
            )
    return f'<ol class="mm-blocks">{"".join(tiles)}</ol>'
