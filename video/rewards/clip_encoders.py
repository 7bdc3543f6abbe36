"""CLIP models of open_clip and of transformers behind one protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.video.rewards.views import normalised


class ClipEncoder(ABC):
    """An `ImageTextEncoder` of a model that takes squares of one size.

    tokenizer: from prompts to ids, int64 [N, T]; None for the one CLIP was published with, which open_clip carries.
    batch: squares a pass.
    """

    def __init__(self, model: nn.Module, tokenizer: Callable[[list[str]], Tensor] | None = None, batch: int = 16):
        self.model, self.batch = model, batch
        self.tokenizer = tokenizer or self._published_tokenizer()

    @property
    @abstractmethod
    def size(self) -> int:
        """Pixels a side of its squares."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """By which the cosine was multiplied in training."""

    @abstractmethod
    def _longest(self) -> int:
        """Tokens of a prompt."""

    @abstractmethod
    def _image_features(self, pixels: Tensor) -> Tensor:
        """[N, 3, S, S] -> [N, D]."""

    @abstractmethod
    def _text_features(self, ids: Tensor) -> Tensor:
        """[N, T] -> [N, D]."""

    @torch.no_grad()
    def encode_images(self, images: Tensor) -> Tensor:
        """uint8 [N, 3, S, S] -> float32 [N, D], each of norm one.   Raises ValueError for squares of another size."""
        if images.dtype != torch.uint8 or images.shape[1:] != (3, self.size, self.size):
            raise ValueError(f"images: expected uint8 [N, 3, {self.size}, {self.size}], got {images.dtype} "
                             f"{tuple(images.shape)}; cut them with Views(size={self.size})")  # fmt: skip
        weight = self.model.logit_scale
        parts = [normalised(part.to(weight.device), weight.dtype) for part in images.split(self.batch)]
        return torch.cat([F.normalize(self._image_features(part).float(), dim=-1) for part in parts])

    @torch.no_grad()
    def encode_texts(self, prompts: Sequence[str]) -> Tensor:
        """float32 [N, D], each of norm one. Longer prompts are cut."""
        ids = self.tokenizer(list(prompts)).to(self.model.logit_scale.device)
        return F.normalize(self._text_features(ids).float(), dim=-1)

    def _published_tokenizer(self) -> Callable[[list[str]], Tensor]:
        from open_clip.tokenizer import SimpleTokenizer

        return SimpleTokenizer(context_length=self._longest())


class OpenClipEncoder(ClipEncoder):
    """A model of open_clip."""

    @property
    def size(self) -> int:
        side = self.model.visual.image_size
        return side if isinstance(side, int) else side[0]

    @property
    def scale(self) -> float:
        return self.model.logit_scale.exp().item()

    def _longest(self) -> int:
        return self.model.context_length

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels)

    def _text_features(self, ids: Tensor) -> Tensor:
        return self.model.encode_text(ids)


class TransformersClipEncoder(ClipEncoder):
    """A `CLIPModel` of transformers."""

    @property
    def size(self) -> int:
        return self.model.config.vision_config.image_size

    @property
    def scale(self) -> float:
        return self.model.logit_scale.exp().item()

    def _longest(self) -> int:
        return self.model.config.text_config.max_position_embeddings

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self.model.visual_projection(self.model.vision_model(pixel_values=pixels).pooler_output)

    def _text_features(self, ids: Tensor) -> Tensor:
        return self.model.text_projection(self.model.text_model(input_ids=ids).pooler_output)
