"""Certificates for accept steps: does somebody's step keep the target's law, and if not, which mistake does it make?"""

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
