"""The zoo's CLIP as an extractor: the default, since it needs no weights of the user's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL.Image import Image

from mmspec import zoo
from mmspec.evaluate.engine.hashes import files_digest
from mmspec.evaluate.quality.features import Read
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.phrases import with_article
from mmspec.zoo.world.pictures import class_names

SHARPNESS = 100.0  # what cosines are multiplied by before the softmax over classes, as CLIP's own logit scale is capped


class ZooClip:
    """Features of the zoo's CLIP, which knows the zoo's world of shapes alone: figures in them stand for no other extractor's.
    Its classes are the world's 64, told from their names.
    """

    name = "zoo CLIP"

    def __init__(self) -> None:
        self.clip = zoo.load("clip")
        self.hash = files_digest([folder_of("clip")])
        self.dim = int(self.clip.model.visual.output_dim)
        self._classes = self.clip.encode_texts([with_article(one) for one in class_names()]).numpy()

    def images(self, images: Sequence[Image]) -> Read:
        features = self.clip.encode_images(list(images)).numpy()
        logits = SHARPNESS * features.astype(np.float64) @ self._classes.T
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return Read(features, (odds / odds.sum(1, keepdims=True)).astype(np.float32))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return self.clip.encode_texts(list(texts)).numpy()
