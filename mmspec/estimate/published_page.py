"""Estimates of published models beside the speedups that papers report, as rows and as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mmspec.estimate.acceptance import curve_of_length
from mmspec.estimate.device import DEVICES, Device
from mmspec.estimate.drafters import drafter_cost
from mmspec.estimate.named import config_values, is_video, named_cost
from mmspec.estimate.published import REPORTED, PublishedSpeedup
from mmspec.estimate.round_cost import Request, RoundCost
from mmspec.estimate.table import BATCHES, NOT_MEASURED
from mmspec.estimate.videos import BlockModel, estimate_video

_CONTEXT = 64  # tokens of a prompt's text
_LENGTHS = range(1, 17)
_DRAFTING_VIDEO = "wan-1.3b"
HEADS = ("model", "drafter", "accept length", "from", "device", "x plain, estimate", "published", "draft of plain pass",
         "stops being faster")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishedEstimate:
    """An estimate beside a reported figure.

    Attributes:
        reported: The figure and its circumstances.
        device: Of the estimate.
        speedup: Estimated, prefill included.
        draft: Seconds of a draft over those of a plain pass.
        stops: The smallest tried batch at which no draft is faster; None for none, and for videos.
    """

    reported: PublishedSpeedup
    device: str
    speedup: float
    draft: float
    stops: int | None


def published_estimates(devices: Sequence[Device] = tuple(DEVICES.values())) -> list[PublishedEstimate]:
    """The estimates of all published models on some devices."""
    return [_estimate(one, device) for one in REPORTED for device in devices]


@cache
def _costs(name: str) -> object:
    return named_cost(name)


def _estimate(one: PublishedSpeedup, device: Device) -> PublishedEstimate:
    values = config_values(one.model)
    if is_video(values):
        small = BlockModel.of(config_values(_DRAFTING_VIDEO))
        video = estimate_video(device, BlockModel.of(values), small, one.accept_length)
        return PublishedEstimate(one, device.name, video.speedup, video.draft_block / video.target_block, None)
    curve = curve_of_length(one.accept_length, one.length, "", one.nodes)
    costs = RoundCost(device, _costs(one.model), drafter_cost(one.drafter), curve)
    request = Request(context=_CONTEXT, pictures=one.pictures, new_tokens=one.new_tokens)
    own = costs.estimate(request, one.length, one.nodes or None)
    trees = (one.nodes,) if one.nodes else ()
    slower = [n for n in BATCHES if costs.best(costs.with_batch(request, n), _LENGTHS, trees).decoding <= 1]
    return PublishedEstimate(
        one, device.name, own.speedup, own.draft / costs.plain(request)[1], min(slower, default=None)
    )


def rows(found: Sequence[PublishedEstimate]) -> list[tuple[str, ...]]:
    """A line a model and drafter on the device that is nearest to the paper's; all devices in the column of estimates."""
    lines = []
    for reported in dict.fromkeys(one.reported for one in found):
        own = [one for one in found if one.reported == reported]
        near = next((one for one in own if one.device == reported.device), own[0])
        others = ", ".join(f"{one.device} {one.speedup:.2f}" for one in own if one is not near)
        published = "-" if reported.speedup is None else f"{reported.speedup:.2f}"
        accepted = (
            f"{reported.accept_length:.2f}"
            if reported.nodes or reported.length > 1
            else f"{reported.accept_length:.1%}"
        )
        stops = (
            "-"
            if is_video(config_values(reported.model))
            else f"batch {near.stops}"
            if near.stops
            else f"not up to batch {BATCHES[-1]}"
        )
        lines.append((reported.model, reported.drafter, accepted, reported.paper or reported.accept_from, near.device,
                     f"{near.speedup:.2f} ({others})", published, f"{near.draft:.2f}", stops))  # fmt: skip
    return lines


def markdown(found: Sequence[PublishedEstimate]) -> str:
    """The rows as a Markdown table."""
    lines = ["| " + " | ".join(HEADS) + " |", "| --- " * len(HEADS) + "|"]
    return "\n".join([f"Every figure in the column of estimates is an {NOT_MEASURED}.", "", *lines,
                      *("| " + " | ".join(row) + " |" for row in rows(found))]) + "\n"  # fmt: skip
