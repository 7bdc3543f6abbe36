"""Published Wan models as block video models, each with the steps and the context it was made for."""

from __future__ import annotations

from typing import Literal

from mmspec.video.generation.few_step import FewStep
from mmspec.video.plan import BlockPlan
from mmspec.video.vae.stream import StreamingVAE
from mmspec.video.wan.cached import Cached
from mmspec.video.wan.rebuilt import Rebuilt
from mmspec.video.wan.transformer import CausalWan
from mmspec.video.wan.video import WanVideo


def self_forcing(transformer: CausalWan, *, window: int | None = None, sinks: int | None = None) -> WanVideo:
    """Self-Forcing (1.3B): four steps with fresh noise at shift 5, a clean pass a block, three latent frames a block.

    window, sinks: for videos longer than the 21 latent frames of its training; None for those of the config.
    """
    return WanVideo(transformer, Cached(window, sinks), FewStep(), BlockPlan(3), name="self-forcing")


def causvid(
    transformer: CausalWan, *, steps: Literal[3, 4] = 3, window: int | None = None, sinks: int | None = None
) -> WanVideo:
    """CausVid (1.3B) at shift 8: its three steps, unwarped, or its four, warped; else as Self-Forcing.

    Raises ValueError for another number.
    """
    lists = {3: FewStep((1000, 757, 522), shift=8.0, warp=False), 4: FewStep(shift=8.0)}
    if steps not in lists:
        raise ValueError(f"steps: expected 3 or 4, got {steps!r}; make a WanVideo with a FewStep for others")
    return WanVideo(transformer, Cached(window, sinks), lists[steps], BlockPlan(3), name="causvid")


def krea(transformer: CausalWan, vae: StreamingVAE | None = None, *, steps: int = 5) -> WanVideo:
    """Krea Realtime (14B): five passes, the last at 0, behind a context of three latents that is read anew for every block.

    vae: encodes the first of them from pixels, see `Rebuilt`.
    """
    return WanVideo(transformer, Rebuilt(3, vae), FewStep.krea(steps), BlockPlan(3), name="krea")
