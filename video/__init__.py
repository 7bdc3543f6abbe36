"""Block-autoregressive video: a small model drafts blocks of frames, a router decides which of them the large one redraws."""

from __future__ import annotations

from mmspec._lazy import lazy

# public name -> module that defines it
_PUBLIC: dict[str, str] = {
    "StreamingWanVAE": "mmspec.video.vae.wan",
}

__all__ = list(_PUBLIC)
__getattr__, __dir__ = lazy(globals(), _PUBLIC)
