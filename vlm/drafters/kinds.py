"""Imports every trained drafter, so that each is registered under its kind."""

from mmspec.vlm.drafters import acceptance_head, eagle, eagle3, flash, hydra, medusa, msd, specvlm, vispec  # noqa: F401
