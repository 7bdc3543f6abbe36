"""Imports every trained drafter, so that each is registered under its kind."""

from mmspec.vlm.drafters import eagle, eagle3, flash, hydra, medusa, msd, specdecpp, specvlm, vispec  # noqa: F401
