"""Estimates of published models beside reported speedups, as rows and as a Markdown page."""

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

_CONTEXT = 64  # text tokens of a prompt
_LENGTHS = range(1, 17)
_DRAFTING_VIDEO = "wan-1.3b"
HEADS = ("model", "drafter", "accept length", "from", "device", "x plain, estimate", "published", "draft of plain pass",
         "stops being faster")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishedEstimate:
    """An estimate beside a reported figure."""

    reported: PublishedSpeedup
    device: str
    speedup: float  # prefill included
    draft: float  # seconds of a draft over those of a plain pass
    stops: int | None  # the smallest tried batch at which no draft is faster; None for none, and for videos


def published_estimates(devices: Sequence[Device] = tuple(DEVICES.values())) -> list[PublishedEstimate]:
    return [_estimate(reported, device) for reported in REPORTED for device in devices]


@cache
def _costs(name: str) -> object:
    return named_cost(name)


def _estimate(reported: PublishedSpeedup, device: Device) -> PublishedEstimate:
    values = config_values(reported.model)
    if is_video(values):
        small = BlockModel.of(config_values(_DRAFTING_VIDEO))
        video = estimate_video(device, BlockModel.of(values), small, reported.accept_length)
        return PublishedEstimate(reported, device.name, video.speedup, video.draft_block / video.target_block, None)
    curve = curve_of_length(reported.accept_length, reported.length, "", reported.nodes)
    costs = RoundCost(device, _costs(reported.model), drafter_cost(reported.drafter), curve)
    request = Request(context=_CONTEXT, pictures=reported.pictures, new_tokens=reported.new_tokens)
    own = costs.estimate(request, reported.length, reported.nodes or None)
    trees = (reported.nodes,) if reported.nodes else ()
    slower = [n for n in BATCHES if costs.best(costs.with_batch(request, n), _LENGTHS, trees).decoding <= 1]
    return PublishedEstimate(
        reported, device.name, own.speedup, own.draft / costs.plain(request)[1], min(slower, default=None)
    )


def rows(estimates: Sequence[PublishedEstimate]) -> list[tuple[str, ...]]:
    """Return a row per model and drafter, on the device nearest to the paper's, with the speedups on the others."""
    lines = []
    for reported in dict.fromkeys(estimate.reported for estimate in estimates):
        own = [estimate for estimate in estimates if estimate.reported == reported]
        near = next((estimate for estimate in own if estimate.device == reported.device), own[0])
        others = ", ".join(f"{estimate.device} {estimate.speedup:.2f}" for estimate in own if estimate is not near)
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
        lines.append(
            (
                reported.model,
                reported.drafter,
                accepted,
                reported.paper or reported.accept_from,
                near.device,
                f"{near.speedup:.2f} ({others})",
                published,
                f"{near.draft:.2f}",
                stops,
            )
        )
    return lines


def markdown(estimates: Sequence[PublishedEstimate]) -> str:
    lines = ["| " + " | ".join(HEADS) + " |", "| --- " * len(HEADS) + "|"]
    return (
        "\n".join(
            [
                f"Every figure in the column of estimates is an {NOT_MEASURED}.",
                "",
                *lines,
                *("| " + " | ".join(row) + " |" for row in rows(estimates)),
            ]
        )
        + "\n"
    )
