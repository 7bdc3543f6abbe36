"""The suites of `mmspec bench video` as data: methods, settings, and what is shown of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mmspec.evaluate.engine.drawn import DrawnSuite
from mmspec.evaluate.model_kinds import BLOCKS, CODES
from mmspec.evaluate.video.decodings import ALONE, PLAIN
from mmspec.evaluate.video.methods import (
    RouterFactory,
    VideoMethod,
    budgeted,
    hybrid,
    learned,
    relative,
    threshold,
)
from mmspec.video.routing.budgets import Random, Strided

_TIMED = (
    "method", "law", "blocks kept", "target forwards", "p50 (s)", "p95 (s)", "seconds", "predicted s",
    "measured / predicted", "x plain (10-90 %)", "x plain's median (90 %)", "draft + target + VAE + reward share",
)  # fmt: skip
_JUDGED = (
    "reward", "of plain's reward (90 %)", "truth", "of plain's truth (90 %)", "colour", "direction", "shape", "seam",
)  # fmt: skip
_EQUAL = ("target blocks", "reward above strided (90 %)", "above random (90 %)", "truth above strided (90 %)",
          "kept by block")  # fmt: skip
_SHARES = (0.25, 0.5, 0.75, 0.9)  # of drafts that routers are calibrated to let stand
_SWEEP = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
_RUN = 3  # drafts in a row at most
_INIT = "frame"  # codes that no pass has scored are drawn as their places in the frame before

_AR = VideoMethod(PLAIN, "target alone", bitwise=True)
_ALONE = VideoMethod(ALONE, "drafter alone", part="draft", decoding=ALONE)
_NONE = VideoMethod(
    "sdvg-none", "SDVG, nothing stands", "sdvg", part="draft", decoding="sdvg:threshold=inf", bitwise=True
)
_ALL = VideoMethod("sdvg-all", "SDVG, everything stands", "sdvg", part="draft", decoding="sdvg:threshold=-inf")


def _row(family: str, title: str, share: float, router: RouterFactory, settings: str = "") -> VideoMethod:
    decoding = f"sdvg:{settings}" if settings else "sdvg"
    return VideoMethod(f"{family}-{share:g}", f"{title} {share:g}", "sdvg", family, part="draft", decoding=decoding,
                       router=router, knob=share)  # fmt: skip


def _sdvg(share: float, sync: str = "lazy") -> VideoMethod:
    family, suffix = ("sdvg", "") if sync == "lazy" else (f"sdvg-{sync}", f", {sync}")
    return _row(family, f"SDVG{suffix}, share", share, threshold(share), f"sync={sync}")


def _routers(share: float) -> tuple[VideoMethod, ...]:
    """Every router that looks at scores, calibrated to let such a share stand."""
    mean = "reduction=mean"
    return (
        _sdvg(share),
        _row("mean", "mean of frames, share", share, threshold(share, "mean"), mean),
        _row("relative", "relative to the first block, share", share, relative(share)),
        _row("relative-mean", "relative, mean of frames, share", share, relative(share, "mean"), mean),
        _row("hybrid", f"at most {_RUN} in a row and SDVG, share", share, hybrid(_RUN, share)),
        _row("learned", "learned gain, share", share, learned(share)),
    )


def _budgets(share: float) -> tuple[VideoMethod, ...]:
    """What needs no reward."""
    kinds = {"strided": Strided, "random": Random}
    return tuple(_row(name, f"{name}, share", share, budgeted(kind, share)) for name, kind in kinds.items())


def at_threshold(least: float) -> VideoMethod:
    """SDVG with a threshold in the reward's own unit."""
    bitwise = least == math.inf
    return VideoMethod(f"fixed-{least:g}", f"SDVG, reward >= {least:g}", "sdvg", "fixed", part="draft",
                       decoding=f"sdvg:threshold={least!r}", bitwise=bitwise, knob=least)  # fmt: skip


_CODES = (
    VideoMethod(PLAIN, "plain", kind=CODES),
    *(
        VideoMethod(f"sjd-{n}", f"SJD {n}", "exact", "sjd", kind=CODES, decoding=f"sjd:window={n},init={_INIT}", knob=n)
        for n in (16, 64)
    ),
    *(
        VideoMethod(f"scd-{n}", f"SCD {n}", "exact", "scd", kind=CODES, decoding=f"scd:window={n},init={_INIT}", knob=n)
        for n in (16, 32, 64, 128)
    ),
    *(
        VideoMethod(f"scd-maximal-{n}", f"SCD {n}, maximal coupling", "exact", "scd-maximal", kind=CODES,
                    decoding=f"scd:window={n},coupling=maximal,init={_INIT}", knob=n)
        for n in (64, 128)
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSuite(DrawnSuite):
    """kind, model: what it draws with where nothing is named.   judged_prompts: of what is judged."""

    kind: str = BLOCKS
    model: str = "video"
    prompts: int = 8
    batches: tuple[int, ...] = (1,)
    judged_prompts: int = 32

    def rows(self, thresholds: Iterable[float] = ()) -> tuple[VideoMethod, ...]:
        """The methods for models of its kind, those with fixed thresholds behind the others."""
        return tuple(one for one in (*self.methods, *map(at_threshold, thresholds)) if one.kind == self.kind)


SUITES: dict[str, VideoSuite] = {
    "speed": VideoSuite(
        about="every router and every way of keeping up timed beside the target alone",
        methods=(_AR, _ALONE, _NONE, _ALL, *map(_sdvg, _SHARES), *(_sdvg(0.75, one) for one in ("eager", "rebuilt")),
                 *_routers(0.75)[1:], *_budgets(0.75)),
        timed=True,
        judged=False,
        columns=_TIMED,
    ),
    "routers": VideoSuite(
        about="videos of every router beside routers without a reward that have the same budget of target blocks",
        methods=(_AR, _ALONE, _ALL, *(one for share in (0.5, 0.75) for one in (*_routers(share), *_budgets(share)))),
        timed=False,
        judged=True,
        columns=("method", "law", "blocks kept", *_JUDGED, *_EQUAL),
    ),
    "threshold": VideoSuite(
        about="a sweep of thresholds: what is kept of the reward, and how fast",
        methods=(_AR, _ALONE, _ALL, *map(_sdvg, _SWEEP), *(one for share in (0.5, 0.75) for one in _budgets(share))),
        timed=True,
        judged=True,
        columns=("method", "law", "knob", "blocks kept", "x plain (10-90 %)", *_JUDGED),
        prompts=4,
        plot=True,
    ),
    "tokens": VideoSuite(
        about="exact decodings of codes, frame after frame, timed beside plain decoding",
        methods=_CODES,
        timed=True,
        judged=False,
        kind=CODES,
        model="video/tokens",
        columns=("method", "law", "passes", "fewer passes", "seconds", "x plain (10-90 %)", "x plain's median (90 %)",
                 "draft + target + verify share", "identical"),
        prompts=4,
    ),
}  # fmt: skip

# (row, rule) of a sweep that names none
SWEPT_BLOCKS = (
    ("ar", ""),
    ("draft", ""),
    *((f"sdvg-{share:g}", "") for share in (0.25, 0.5, 0.75, 0.9)),
    ("strided-0.5", ""),
)
SWEPT_CODES = (("ar", ""), *((f"scd-{window}", "") for window in (32, 64)), ("sjd-64", ""))
