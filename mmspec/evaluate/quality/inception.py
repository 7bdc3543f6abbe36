"""Inception v3 as an extractor, for two published forms of weights, which the user provides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL.Image import Image
from torch import Tensor, nn
from torchvision.models.inception import Inception3, InceptionA, InceptionC, InceptionE

from mmspec.evaluate.base.provenance import files_digest
from mmspec.evaluate.quality.features import ExtractedFeatures
from mmspec.io.images import check_images
from mmspec.io.readers import read_tensors

SIDE, BATCH = 299, 32
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


class _AveragedPoolBlock:
    """A block whose pooled branch averages over existing pixels only, as TensorFlow's padding does."""

    def _pooled(self, x: Tensor) -> Tensor:
        return self.branch_pool(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))


class _InceptionA(_AveragedPoolBlock, InceptionA):
    def _forward(self, x: Tensor) -> list[Tensor]:
        middle = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return [self.branch1x1(x), middle, double, self._pooled(x)]


class _InceptionC(_AveragedPoolBlock, InceptionC):
    def _forward(self, x: Tensor) -> list[Tensor]:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_1(x)
        for number in range(2, 6):
            double = getattr(self, f"branch7x7dbl_{number}")(double)
        return [self.branch1x1(x), seven, double, self._pooled(x)]


class _InceptionE(_AveragedPoolBlock, InceptionE):
    def _forward(self, x: Tensor) -> list[Tensor]:
        three = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        three, double = (
            torch.cat([getattr(self, f"{name}a")(value), getattr(self, f"{name}b")(value)], 1)
            for name, value in (("branch3x3_2", three), ("branch3x3dbl_3", double))
        )
        return [self.branch1x1(x), three, double, self._pooled(x)]


class _LastInceptionE(_InceptionE):
    def _pooled(self, x: Tensor) -> Tensor:
        return self.branch_pool(F.max_pool2d(x, 3, 1, 1))  # FID's published graph has max pooling here


def published_inception() -> Inception3:
    """Return the network of the 2015 TensorFlow graph with which FID and the Inception Score were published. It has
    1008 classes and no auxiliary head. Its weights have torchvision's names, as in pytorch-fid and torch-fidelity."""
    model = Inception3(num_classes=1008, aux_logits=False, transform_input=False, init_weights=False)
    for name, width, pool in (("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_5d", 288, 64)):
        setattr(model, name, _InceptionA(width, pool))
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        setattr(model, name, _InceptionC(768, width))
    model.Mixed_7b, model.Mixed_7c = _InceptionE(1280), _LastInceptionE(2048)
    return model


class Inception:
    """Inception v3 as an extractor: 2048 features before the last layer, and its classes. The number of classes tells
    two forms of safetensors files apart. Torchvision's model has 1000 classes; pictures are resized smoothly and
    normalised as in ImageNet. The published graph has 1008 classes; pictures are resized as in TensorFlow 1 and scaled
    by 128, and classes are computed without the bias, as in torch-fidelity."""

    dim = 2048

    def __init__(self, weights: Path):
        state = {name: value for name, value in read_tensors(weights).items() if not name.startswith("AuxLogits")}
        classes = state["fc.weight"].shape[0] if "fc.weight" in state else 0
        if classes not in (1000, 1008):
            raise ValueError(
                f"{weights}: expected Inception v3 with 1000 classes (torchvision) or 1008 (the published graph), got "
                f"{classes}; name a file of either"
            )
        self.published = classes == 1008
        self.name = "Inception v3 (published graph)" if self.published else "Inception v3 (torchvision)"
        self.hash = files_digest([weights])
        plain = {"num_classes": 1000, "aux_logits": False, "transform_input": False, "init_weights": False}
        self.model = published_inception() if self.published else Inception3(**plain)
        missing, unknown = self.model.load_state_dict(
            {name: value.float() for name, value in state.items()}, strict=False
        )
        missing = [name for name in missing if not name.endswith("num_batches_tracked")]
        if missing or unknown:
            raise ValueError(
                f"{weights}: expected the tensors of {self.name}, got {len(missing)} too few and {len(unknown)} "
                f"unknown ({', '.join([*missing, *unknown][:3])}); name the right file"
            )
        self.model.eval().requires_grad_(False)
        self.model.fc, self._head = nn.Identity(), self.model.fc
        self.model.dropout = nn.Identity()

    @torch.no_grad()
    def images(self, images: Sequence[Image]) -> ExtractedFeatures:
        images = check_images(images)
        pooled = torch.cat(
            [
                self.model(torch.cat([self._prepared(image) for image in images[first : first + BATCH]]))
                for first in range(0, len(images), BATCH)
            ]
        )
        logits = F.linear(pooled, self._head.weight, None if self.published else self._head.bias)
        return ExtractedFeatures(pooled.numpy(), logits.double().softmax(1).float().numpy())

    def texts(self, texts: Sequence[str]) -> None:
        return None

    def _prepared(self, image: Image) -> Tensor:
        """Return a picture as float32 [1, 3, 299, 299]."""
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        if self.published:
            return (resized(pixels) - 128) / 128
        smooth = F.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
        mean, spread = (torch.tensor(channel).view(1, 3, 1, 1) for channel in (_MEAN, _SPREAD))
        return (smooth / 255 - mean) / spread


def resized(pixels: Tensor, side: int = SIDE) -> Tensor:
    """Resize float [B, C, H, W] to [B, C, side, side] bilinearly as TensorFlow 1 does. Pixel i is read at i H / side,
    so that the top left corners coincide and nothing is smoothed. Another resizing would change Frechet distances more
    than good methods do."""
    for dim in (2, 3):
        size = pixels.shape[dim]
        at = torch.arange(side, dtype=torch.float32) * (size / side)
        low = at.floor().long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        share = (at - low).view([-1 if axis == dim else 1 for axis in range(4)])
        below, above = pixels.index_select(dim, low), pixels.index_select(dim, high)
        pixels = below + (above - below) * share
    return pixels
