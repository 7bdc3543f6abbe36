"""Vision-language models: the target adapter for transformers models, drafters and their loaders."""

from __future__ import annotations

from mmspec._lazy import lazy

if __name__ != "mmspec.vlm":
    raise ImportError(f"expected to be imported as mmspec.vlm, got {__name__}; write `import mmspec.vlm`")

_PUBLIC = {
    "Rounds": "mmspec.vlm.graphs.rounds",
    "automatic": "mmspec.vlm.auto",
    "decode": "mmspec.vlm.api",
    "generate": "mmspec.vlm.api",
    "offer": "mmspec.vlm.auto",
    "measure_pass_costs": "mmspec.vlm.pass_timing",
    "start": "mmspec.vlm.api",
    "drafter_from_state_dict": "mmspec.vlm.drafters.checkpoints",
    "load_drafter": "mmspec.vlm.drafters.checkpoints",
    "supported": "mmspec.vlm.architectures",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
