"""Figures of drawn output for the screen and for files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mmspec.core.round.stats import Stats
from mmspec.run.timed_run import row_passes


def figures_of(parts: Sequence[Stats], seconds: float, failed: Collection[int] = ()) -> dict:
    """Return the cost of a call of several requests, rounded once for the screen and the file; `seconds` is its wall
    time. The numbers of failed images are left out of means unless all have failed."""
    costs = [pair for stats in parts for pair in zip(row_passes(stats), stats.emitted, strict=True)]
    whole = [pair for number, pair in enumerate(costs) if number not in failed]
    passes, emitted = zip(*(whole or costs), strict=True)
    times = (*parts[0].seconds(), "other")
    return {
        "images": len(whole),
        "seconds": round(seconds, 3),
        "drafter": parts[0].drafter,
        "rule": parts[0].rule,
        "exact": all(stats.exact for stats in parts),
        "target_passes": round(sum(passes) / len(passes), 1),
        "plain_passes": round(sum(emitted) / len(emitted), 1),
        "step_compression": round(sum(emitted) / sum(passes), 3),
        "drafter_passes": sum(stats.drafter_passes for stats in parts),
        **{f"{part}_s": round(sum(getattr(stats, f"{part}_s") for stats in parts), 4) for part in times},
    }
