"""Imports every trained drafter, so that each is registered under its kind."""

# ruff: noqa: F401

from mmspec.vlm.drafters import (
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
