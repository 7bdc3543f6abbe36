"""MSD: text slots fused, picture slots the projected vision embeddings as they are."""

from mmspec.vlm.drafters.msd.drafter import Msd

__all__ = ["Msd"]
