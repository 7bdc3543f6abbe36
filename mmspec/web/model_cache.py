"""The models of the app: weights, loaded on first use and shared. Nothing about a visitor is kept here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ModelCache:
    """Models by name. vlm: what answers questions: "zoo" or a folder with a saved model."""

    def __init__(self, vlm: str = "zoo"):
        self.vlm = vlm
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    def once(self, name: str, make: Callable[[], T]) -> T:
        """The model `name`, made by the first caller."""
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def vlm_resources(self) -> Any:
        """`VlmResources` of the model that answers questions."""
        return self.once("vlm", self._vlm)

    def _vlm(self) -> Any:
        from mmspec.evaluate.vlm.resources import published_resources, zoo_resources

        return zoo_resources() if self.vlm == "zoo" else published_resources(self.vlm, local=True)

    def image_resources(self, name: str) -> Any:
        """`ImageResources` or `ContinuousResources` of a model of the zoo."""
        from mmspec.evaluate.model_kinds import CONTINUOUS_MODELS

        if name in CONTINUOUS_MODELS:
            from mmspec.evaluate.continuous.resources import open_continuous as opened
        else:
            from mmspec.evaluate.image.resources import zoo_resources as opened
        return self.once(f"image {name}", lambda: opened(name))

    def video_resources(self) -> Any:
        """`VideoResources` of the zoo's model of blocks.   Raises ValueError where it is not built."""
        from mmspec.evaluate.video.resources import open_video

        return self.once("video", lambda: open_video("video"))
