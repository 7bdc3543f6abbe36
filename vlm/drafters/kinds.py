"""Imports every trained drafter, so that each is registered under its kind."""

from mmspec.vlm.drafters import eagle, msd  # noqa: F401
