"""`mmspec video` with models that draw codes, frame after frame."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mmspec.cli.console import BadOption, progress, refusing
from mmspec.cli.film import keep
from mmspec.cli.image_codes import VECTORS, open_codes
from mmspec.cli.models import reading
from mmspec.cli.video_blocks import Filmed

if TYPE_CHECKING:
    from mmspec.evaluate.image.resources import ImageResources


def film_codes(
    prompt: str, model: str, decoding: str, asked: dict[str, Any], seed: int, fps: float, out: Path
) -> Filmed:
    """Draws a video of codes into `out`."""
    from mmspec.core.rules.base import Misfit
    from mmspec.evaluate.image.runner import figures_of

    wishes = {name: asked[name] for name in ("rule", "window", "coupling", "init")}
    wishes |= dict.fromkeys(("drafter", "upsampler", *VECTORS))
    usual = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}
    settings = {name: value if asked[name] is None else asked[name] for name, value in usual.items()}
    opened = open_codes(model, decoding, wishes, settings | {"guidance_scale": asked["guidance"]}, _videos)
    with refusing():
        given = opened.given([prompt])
    began = perf_counter()
    with progress() as bar:
        task = bar.add_task("codes", total=opened.total)
        try:
            made = opened.pipeline(given, seed=[seed], listener=lambda row, filled: bar.update(task, completed=filled),
                                   **opened.arguments)  # fmt: skip
        except Misfit as error:
            raise BadOption(f"--decoding: {error}") from error
    figures = figures_of([made.stats], perf_counter() - began, made.errors)
    pictures = made.videos[0]
    figures |= {**opened.settings, "frames": len(pictures or ()), "plain_passes": float(opened.passes)}
    if pictures is not None:
        keep(np.stack([np.asarray(one) for one in pictures]), out, fps)
    error = None if not made.errors else next(iter(made.errors.values())).removeprefix("row 0: ")
    return Filmed(opened.name, None if pictures is None else out, _line(figures), figures, error)


def _videos(model: str) -> ImageResources:
    from mmspec.evaluate.video.resources import open_video

    with reading(model, "a folder with a saved pipeline"):
        return open_video(model).codes


def _line(figures: dict[str, Any]) -> str:
    rule = f"{figures['rule']} (exact)" if figures["exact"] else figures["rule"]
    return (f"{figures['frames']} frames in {figures['seconds']} s, {figures['target_passes']:g} target passes instead of "
            f"{figures['plain_passes']:g}, {figures['drafter']}, rule {rule}, guidance {figures['guidance']}, temperature "
            f"{figures['temperature']:g}")  # fmt: skip
