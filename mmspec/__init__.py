"""mmspec: lossless draft-and-verify decoding for multimodal models.

Public names are handed out on first use, so that `import mmspec` loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module

from mmspec._checkout import install as _install_checkout_finder
from mmspec._renamed import install as _install_renamed_finder

__version__ = "0.1.0"

# public name -> "module" or "module:attribute"
_PUBLIC = {
    "core": "mmspec.core",
    "decode": "mmspec.vlm.api:decode",
    "drafters": "mmspec.vlm.drafters",
    "evaluate": "mmspec.evaluate",
    "generate": "mmspec.vlm.api:generate",
    "imagegen": "mmspec.imagegen",
    "kernels": "mmspec.kernels",
    "vlm": "mmspec.vlm",
    "zoo": "mmspec.zoo",
}

__all__ = ["__version__", *_PUBLIC]

_install_checkout_finder(__path__[0])
_install_renamed_finder()


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mmspec' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
