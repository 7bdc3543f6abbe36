"""Medusa: independent heads on the target's last state."""

from mmspec.vlm.drafters.medusa.drafter import Medusa

__all__ = ["Medusa"]
