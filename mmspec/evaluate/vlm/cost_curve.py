"""What a pass over several rows costs a target, relative to a pass over a single row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter

from torch import Tensor, nn

from mmspec import vlm
from mmspec.core.draft import Draft, Law
from mmspec.core.loop import Target
from mmspec.core.tree import chain
from mmspec.evaluate.engine.suite import Setting
from mmspec.evaluate.vlm.resources import VlmResources
from mmspec.evaluate.vlm.runner import cases

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
REPEATS = 7


def cost_curve(resources: VlmResources, setting: Setting) -> dict:
    """Measure the passes over the first prompt of a setting.

    Args:
        resources: The model.
        setting: Where the prompt is taken from.

    Returns:
        `rows`: the widths. `ms`: medians of milliseconds a pass. `ratio`: those over the first.
    """
    seconds = pass_seconds(resources.model, cases(resources, setting)[0])
    medians = [median(seconds[width]) for width in WIDTHS]
    return {
        "rows": list(WIDTHS),
        "ms": [round(1000 * one, 3) for one in medians],
        "ratio": [round(one / medians[0], 3) for one in medians],
    }


def pass_seconds(
    model: nn.Module, inputs: Mapping[str, Tensor], widths: Sequence[int] = WIDTHS, repeats: int = REPEATS
) -> dict[int, list[float]]:
    """Time passes over drafts of several widths in turn, so that drifts of the machine meet all widths alike.

    Args:
        model: The target.
        inputs: A prompt, as `generate` takes it.
        widths: Rows of a pass, the root among them.
        repeats: Timed passes of every width; a pass before them is not timed.

    Returns:
        Seconds by width.
    """
    request = vlm.start(model, max_new_tokens=max(widths) + 2, do_sample=False, **inputs)
    request.step()
    found: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(repeats + 1):
        for width in widths:
            draft = _draft(request.target, width)
            began = perf_counter()
            request.target.score(draft)  # nothing is committed: the next pass forgets it
            if repeat:
                found[width].append(perf_counter() - began)
    return found


def _draft(target: Target, width: int) -> Draft:
    """A chain that repeats the last token: what it says does not change what it costs."""
    root = target.pending[:, None]
    return Draft(root.expand(-1, width).contiguous(), chain(width - 1, root.device), Law("deterministic"))


def curve_text(curve: Mapping[str, Sequence[float]]) -> str:
    """The curve in a sentence."""
    ratios = ", ".join(f"{rows}: {ratio:.2f}" for rows, ratio in zip(curve["rows"], curve["ratio"], strict=True))
    return f"a pass over so many rows in passes over one ({curve['ms'][0]:.1f} ms): {ratios}"
