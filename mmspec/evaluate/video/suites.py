"""The suites of `mmspec bench video` as data: methods, calibrated routers, settings, and the columns of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mmspec.evaluate.engine.drawn import DrawnMethod, DrawnSuite
from mmspec.evaluate.video.calibration import router_calibration
from mmspec.evaluate.video.config import VideoSetting
from mmspec.methods import parse
from mmspec.run.decoding_options import PLAIN
from mmspec.run.model_kinds import BLOCKS, CODES
from mmspec.run.video_models import ALONE, PipelineCall, VideoResources, pipeline_call
from mmspec.video.routing.budgets import Random, Strided
from mmspec.video.routing.learned import Learned
from mmspec.video.routing.routers import Hybrid, Relative, Router, Threshold

RouterFactory = Callable[[VideoResources, VideoSetting], Router]


@dataclass(frozen=True, slots=True)
class VideoMethod(DrawnMethod):
    decoding: str = PLAIN  # as text, see `mmspec.methods.parse`
    kind: str = BLOCKS  # of model that it supports
    bitwise: bool = False  # its videos equal the target's, bit for bit
    # calibrated to accept the share of drafts given by the knob; None for the text's own router
    router: RouterFactory | None = None

    def make(self, resources: VideoResources, setting: VideoSetting) -> PipelineCall:
        """Return the call that draws; its parts are loaded and its router is calibrated now."""
        router = None if self.router is None else self.router(resources, setting)
        call = pipeline_call(parse(self.decoding, "video", "decoding", models=self.kind), resources, router)
        if self.kind == CODES and self.rule != "exact":
            call.arguments["rule"] = resources.codes.rule(self.rule)
        return call


def threshold(share: float, reduction: str = "min") -> RouterFactory:
    """Calibrate a threshold that accepts this share of the drafts of other videos."""
    if share in (0, 1):
        return lambda resources, setting: Threshold(math.inf if share == 0 else -math.inf)
    return lambda resources, setting: Threshold.accepting(
        share, router_calibration(resources, setting).scores(reduction)[0]
    )


def relative(share: float, reduction: str = "min") -> RouterFactory:
    """Calibrate a margin below a video's own first block that accepts this share of the drafts of other videos."""
    return lambda resources, setting: Relative.accepting(
        share, *router_calibration(resources, setting).scores(reduction)
    )


def hybrid(run: int, share: float) -> RouterFactory:
    """Limit drafts in a row to `run`, with a calibrated threshold that redraws earlier."""
    return lambda resources, setting: Hybrid(run, threshold(share)(resources, setting))


def learned(share: float) -> RouterFactory:
    """Calibrate a limit of predicted gains that accepts this share of the drafts of other videos."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        calibration = router_calibration(resources, setting)
        model = resources.once(f"advantage {setting.blocks} {setting.seed}", calibration.advantage)
        return Learned(model, calibration.gain(model, share))

    return make


def budgeted(kind: Callable[[int], Router], share: float) -> RouterFactory:
    """Return `Strided` or `Random` with a number of target blocks that leaves this share of the others to the drafter."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        blocks = setting.blocks or resources.pipeline.blocks
        return kind(1 + round((1 - share) * (blocks - 1)))

    return make


_TIMED = (
    "method", "output", "blocks kept", "target forwards", "p50 (s)", "p95 (s)", "seconds", "predicted s",
    "measured / predicted", "x plain (10-90 %)", "x plain's median (90 %)", "draft + target + VAE + reward share",
)  # fmt: skip
_JUDGED = (
    "reward", "of plain's reward (90 %)", "truth", "of plain's truth (90 %)", "colour", "direction", "shape", "seam",
)  # fmt: skip
_EQUAL = ("target blocks", "reward above strided (90 %)", "above random (90 %)", "truth above strided (90 %)",
          "kept by block")  # fmt: skip
_SHARES = (0.25, 0.5, 0.75, 0.9)  # shares of drafts that routers are calibrated to accept
_SWEEP = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
_RUN = 3  # the most drafts in a row
_INIT = "frame"  # codes without scores start as the same places of the frame before

_AR = VideoMethod(PLAIN, "target alone", bitwise=True)
_ALONE = VideoMethod(ALONE, "drafter alone", part="draft", decoding=ALONE)
_NONE = VideoMethod(
    "sdvg-none", "SDVG, nothing stands", "sdvg", part="draft", decoding="sdvg:threshold=inf", bitwise=True
)
_ALL = VideoMethod("sdvg-all", "SDVG, everything stands", "sdvg", part="draft", decoding="sdvg:threshold=-inf")


def _row(family: str, title: str, share: float, router: RouterFactory, settings: str = "") -> VideoMethod:
    decoding = f"sdvg:{settings}" if settings else "sdvg"
    return VideoMethod(
        f"{family}-{share:g}",
        f"{title} {share:g}",
        "sdvg",
        family,
        part="draft",
        decoding=decoding,
        router=router,
        knob=share,
    )


def _sdvg(share: float, sync: str = "lazy") -> VideoMethod:
    family, suffix = ("sdvg", "") if sync == "lazy" else (f"sdvg-{sync}", f", {sync}")
    return _row(family, f"SDVG{suffix}, share", share, threshold(share), f"sync={sync}")


def _routers(share: float) -> tuple[VideoMethod, ...]:
    """Return a row for every router that uses scores, calibrated to accept this share."""
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
    """Return the rows of routers without a reward."""
    kinds = {"strided": Strided, "random": Random}
    return tuple(_row(name, f"{name}, share", share, budgeted(kind, share)) for name, kind in kinds.items())


def at_threshold(least: float) -> VideoMethod:
    """Return SDVG with a threshold in the reward's own unit."""
    bitwise = least == math.inf
    return VideoMethod(
        f"fixed-{least:g}",
        f"SDVG, reward >= {least:g}",
        "sdvg",
        "fixed",
        part="draft",
        decoding=f"sdvg:threshold={least!r}",
        bitwise=bitwise,
        knob=least,
    )


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
    kind: str = BLOCKS  # of model
    model: str = "video"  # by default
    prompts: int = 8
    batches: tuple[int, ...] = (1,)
    judged_prompts: int = 32  # by default

    def rows(self, thresholds: Iterable[float] = ()) -> tuple[VideoMethod, ...]:
        """Return the methods for models of its kind, followed by rows with fixed thresholds."""
        return tuple(method for method in (*self.methods, *map(at_threshold, thresholds)) if method.kind == self.kind)


SUITES: dict[str, VideoSuite] = {
    "speed": VideoSuite(
        about="every router and every way of keeping up timed beside the target alone",
        title="Videos: speed",
        methods=(_AR, _ALONE, _NONE, _ALL, *map(_sdvg, _SHARES), *(_sdvg(0.75, reuse) for reuse in ("eager", "rebuilt")),
                 *_routers(0.75)[1:], *_budgets(0.75)),
        columns=_TIMED,
    ),
    "routers": VideoSuite(
        about="videos of every router beside routers without a reward that have the same budget of target blocks",
        title="Videos: routers",
        methods=(_AR, _ALONE, _ALL, *(method for share in (0.5, 0.75) for method in (*_routers(share), *_budgets(share)))),
        timed=False,
        judged=True,
        columns=("method", "output", "blocks kept", *_JUDGED, *_EQUAL),
    ),
    "threshold": VideoSuite(
        about="a sweep of thresholds: what is kept of the reward, and how fast",
        title="Videos: thresholds",
        methods=(_AR, _ALONE, _ALL, *map(_sdvg, _SWEEP), *(budget for share in (0.5, 0.75) for budget in _budgets(share))),
        judged=True,
        columns=("method", "output", "knob", "blocks kept", "x plain (10-90 %)", *_JUDGED),
        prompts=4,
        plot=True,
    ),
    "tokens": VideoSuite(
        about="exact decodings of codes, frame after frame, timed beside plain decoding",
        title="Videos: tokens",
        methods=_CODES,
        kind=CODES,
        model="video/tokens",
        columns=("method", "output", "passes", "fewer passes", "seconds", "x plain (10-90 %)", "x plain's median (90 %)",
                 "draft + target + verify share", "identical"),
        prompts=4,
    ),
}  # fmt: skip

# the default (row, rule) pairs of a sweep
SWEPT_BLOCKS = (
    ("ar", ""),
    ("draft", ""),
    *((f"sdvg-{share:g}", "") for share in (0.25, 0.5, 0.75, 0.9)),
    ("strided-0.5", ""),
)
SWEPT_CODES = (("ar", ""), *((f"scd-{window}", "") for window in (32, 64)), ("sjd-64", ""))
