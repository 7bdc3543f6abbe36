"""Drafters in the file formats of serving engines: vLLM, in the format of the `speculators` library, and SGLang."""

from mmspec.vlm.export.folder import ExportOptions, export_drafter
from mmspec.vlm.export.verifier import Verifier

__all__ = ["ExportOptions", "Verifier", "export_drafter"]
