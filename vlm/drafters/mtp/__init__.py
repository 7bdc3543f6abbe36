"""Native MTP layers: the drafter inside a target's own checkpoint."""

from mmspec.vlm.drafters.mtp.mtp_drafter import Mtp, MtpConfig

__all__ = ["Mtp", "MtpConfig"]
