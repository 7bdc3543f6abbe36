"""mmspec: lossless draft-and-verify decoding for multimodal models.

Public names are imported on first use, so that `import mmspec` loads neither torch nor transformers.
"""

from __future__ import annotations

from mmspec._checkout import install as _install_checkout_finder
from mmspec._lazy import lazy

__version__ = "0.1.0"

# public name -> "module" or "module:attribute"
_PUBLIC = {
    "Session": "mmspec.vlm.conversation.session:Session",
    "certify": "mmspec.certify",
    "core": "mmspec.core",
    "decode": "mmspec.vlm.api:decode",
    "disable": "mmspec.attach.enable:disable",
    "drafters": "mmspec.drafters",
    "enable": "mmspec.attach.enable:enable",
    "evaluate": "mmspec.evaluate",
    "generate": "mmspec.vlm.api:generate",
    "imagegen": "mmspec.imagegen",
    "kernels": "mmspec.kernels",
    "methods": "mmspec.methods",
    "summary": "mmspec.attach.enable:summary",
    "supported": "mmspec.run.supported:supported",
    "video": "mmspec.video",
    "vlm": "mmspec.vlm",
    "zoo": "mmspec.zoo",
}

__all__ = ["__version__", *_PUBLIC]

_install_checkout_finder(__path__[0])
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
