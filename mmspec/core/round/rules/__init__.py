"""Acceptance rules: a threshold for every node of a draft, and the value after the accepted path."""

from __future__ import annotations

from mmspec.core.round.rules.base import Rule, Weights
from mmspec.core.round.rules.by_name import BestExact, resolve
from mmspec.core.round.rules.gaussian import GaussianBlock, Reflection
from mmspec.core.round.rules.rejection import BlockVerification, KSeq, RecursiveRejection, TokenWise, Traversal
from mmspec.core.round.rules.target_match import TargetMatch

__all__ = [
    "BestExact",
    "BlockVerification",
    "GaussianBlock",
    "KSeq",
    "RecursiveRejection",
    "Reflection",
    "Rule",
    "TargetMatch",
    "TokenWise",
    "Traversal",
    "Weights",
    "resolve",
]
