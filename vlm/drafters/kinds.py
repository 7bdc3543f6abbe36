"""Imports every trained drafter, so that each is registered under its kind."""

from mmspec.vlm.drafters import (  # noqa: F401
    dflash,
    dflash2,
    dspark,
    eagle,
    eagle3,
    flash,
    gemma4,
    hydra,
    medusa,
    msd,
    peagle,
    specdecpp,
    specvlm,
    vispec,
)
