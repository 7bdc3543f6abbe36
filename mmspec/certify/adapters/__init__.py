"""Other projects' accept steps in the terms of ours; each needs its project only when it is asked for."""

from __future__ import annotations

from mmspec._lazy import lazy

_PUBLIC = {
    "flashinfer": "mmspec.certify.adapters.flashinfer_chain:flashinfer",
    "sglang": "mmspec.certify.adapters.sglang_tree:sglang",
    "sglang_kernel": "mmspec.certify.adapters.sglang_tree:sglang_kernel",
    "transformers": "mmspec.certify.adapters.assisted:transformers",
    "vllm": "mmspec.certify.adapters.vllm_chain:vllm",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
