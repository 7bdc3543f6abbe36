"""Certificates for accept steps: whether a step keeps the target's distribution, and if not, which mistake it makes."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "Certificate": "mmspec.certify.certificate",
    "Shape": "mmspec.certify.cases",
    "StepAnswer": "mmspec.certify.step",
    "StepFailed": "mmspec.certify.step",
    "StepQuestion": "mmspec.certify.step",
    "certify": "mmspec.certify.examination",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
