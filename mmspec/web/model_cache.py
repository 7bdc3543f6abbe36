"""The models of the page: weights, loaded on first use and shared. The cache holds nothing about visitors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ModelCache:
    """The models by name; `vlm` is the model that answers questions: "zoo", or a folder with a saved model."""

    def __init__(self, vlm: str = "zoo"):
        self.vlm = vlm
        self._models: dict[str, Any] = {}
        self._lock = threading.Lock()

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the model `name`; the first caller makes it."""
        with self._lock:
            if name not in self._models:
                self._models[name] = make()
            return self._models[name]

    def vlm_resources(self) -> Any:
        """Return the `VlmResources` of the model that answers questions."""
        return self.once("vlm", self._vlm)

    def _vlm(self) -> Any:
        from mmspec.run.vlm_models import published_resources, zoo_resources

        return zoo_resources() if self.vlm == "zoo" else published_resources(self.vlm, local=True)

    def image_resources(self, name: str) -> Any:
        """Return the `ImageResources` or `ContinuousResources` of a model of the zoo."""
        from mmspec.run.model_kinds import CONTINUOUS_MODELS

        if name in CONTINUOUS_MODELS:
            from mmspec.run.continuous_models import open_continuous as opened
        else:
            from mmspec.run.image_models import zoo_resources as opened
        return self.once(f"image {name}", lambda: opened(name))

    def video_resources(self, name: str = "video") -> Any:
        """Return the `VideoResources` of a model of the zoo: "video" (of blocks) or "video/tokens"."""
        from mmspec.run.video_models import open_video

        return self.once(name, lambda: open_video(name))
