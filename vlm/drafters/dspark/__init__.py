"""DSpark: a block from one pass, each row corrected by the token before it."""

from mmspec.vlm.drafters.dspark.drafter import DSpark, DSparkConfig
from mmspec.vlm.drafters.dspark.modules import PredictedAcceptance

__all__ = ["DSpark", "DSparkConfig", "PredictedAcceptance"]
