"""CLIP models as feature extractors: those of open_clip, of transformers, and of the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from mmspec import zoo
from mmspec.evaluate.base.provenance import files_digest
from mmspec.evaluate.quality.features import ExtractedFeatures
from mmspec.io.images import check_images
from mmspec.io.readers import read_tensors
from mmspec.io.validation import texts_of
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.image import class_names
from mmspec.zoo.world.language import with_article

BATCH = 32


class OpenClip:
    """A model of open_clip by name, such as "ViT-B-32", with weights from a safetensors file, as a feature extractor."""

    def __init__(self, model: str, weights: Path):
        import open_clip

        if model not in open_clip.list_models():
            raise ValueError(f"--extractor: expected a model of open_clip, got {model!r}, see open_clip.list_models()")
        clip, _, prepare = open_clip.create_model_and_transforms(model, pretrained=None, load_weights=False)
        state = read_tensors(weights)
        try:
            clip.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                f"{weights}: expected the weights of open_clip's {model}, got others "
                f"({' '.join(str(error).split())[:120]}); name the right file"
            ) from error
        self.model, self._prepare = clip.float().eval().requires_grad_(False), prepare
        self._tokenize = open_clip.get_tokenizer(model)
        self.name, self.hash = f"open_clip {model}", files_digest([weights])
        self.dim = int(self.texts(["a"]).shape[1])

    @torch.no_grad()
    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        images = check_images(images)
        batches = [images[first : first + BATCH] for first in range(0, len(images), BATCH)]
        features = [self.model.encode_image(torch.stack([self._prepare(image) for image in part])) for part in batches]
        return ExtractedFeatures(torch.cat(features).float().numpy())

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return self.model.encode_text(self._tokenize(texts_of("texts", texts))).float().numpy()


class TransformersClip:
    """A CLIP of transformers with its processor, from a folder."""

    def __init__(self, folder: Path):
        from transformers import CLIPModel, CLIPProcessor

        from mmspec.io.checkpoints import load_model, load_part, weight_files

        self.model = load_model(CLIPModel, folder, dtype=torch.float32)
        self.processor = load_part(CLIPProcessor, folder)
        self.name, self.hash = f"transformers CLIP {folder.name}", files_digest(weight_files(folder))
        self.dim = int(self.model.config.projection_dim)

    @torch.no_grad()
    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        features = []
        images = check_images(images)
        for first in range(0, len(images), BATCH):
            inputs = self.processor(images=images[first : first + BATCH], return_tensors="pt")
            features.append(_rows(self.model.get_image_features(**inputs)))
        return ExtractedFeatures(torch.cat(features).numpy())

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> np.ndarray:
        inputs = self.processor(text=texts_of("texts", texts), return_tensors="pt", padding=True, truncation=True)
        return _rows(self.model.get_text_features(**inputs)).numpy()


def _rows(output: Any) -> Tensor:
    """Return the features of a call, which some versions of transformers wrap in an output object."""
    return (output if isinstance(output, Tensor) else output.pooler_output).float()


SHARPNESS = 100.0  # the logit scale of the softmax over classes, the cap of CLIP's own scale


class ZooClip:
    """Features of the zoo's CLIP, which only knows the zoo's world of shapes. Its figures cannot be compared with those
    of other extractors. Its classes are the names of the world's 64 classes."""

    name = "zoo CLIP"

    def __init__(self) -> None:
        self.clip = zoo.load("clip")
        self.hash = files_digest([folder_of("clip")])
        self.dim = int(self.clip.model.visual.output_dim)
        self._classes = self.clip.encode_texts([with_article(name) for name in class_names()]).numpy()

    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        features = self.clip.encode_images(images).numpy()
        logits = SHARPNESS * features.astype(np.float64) @ self._classes.T
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return ExtractedFeatures(features, (odds / odds.sum(1, keepdims=True)).astype(np.float32))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return self.clip.encode_texts(texts).numpy()
