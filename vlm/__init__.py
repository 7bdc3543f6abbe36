"""Vision-language models: the target adapter for transformers models, drafters and their loaders."""

from __future__ import annotations

from importlib import import_module

if __name__ != "mmspec.vlm":
    raise ImportError(f"expected to be imported as mmspec.vlm, got {__name__}; write `import mmspec.vlm`")

_PUBLIC = {
    "decode": "mmspec.vlm.api",
    "generate": "mmspec.vlm.api",
    "start": "mmspec.vlm.api",
    "drafter_from_state_dict": "mmspec.vlm.drafters.published",
    "load_drafter": "mmspec.vlm.checkpoints",
    "supported": "mmspec.vlm.architectures",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mmspec.vlm' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
