"""Acceptance rules: thresholds for every node of a draft, and what follows the accepted path."""

from __future__ import annotations

from mmspec.core.rules.base import Rule, Weights
from mmspec.core.rules.block import BlockVerification
from mmspec.core.rules.gaussian_block import GaussianBlock
from mmspec.core.rules.kseq import KSeq
from mmspec.core.rules.match import TargetMatch
from mmspec.core.rules.reflection import Reflection
from mmspec.core.rules.resolve import BestExact, resolve
from mmspec.core.rules.sequential import RecursiveRejection, Traversal
from mmspec.core.rules.tokenwise import TokenWise

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
