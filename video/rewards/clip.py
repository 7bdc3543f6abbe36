"""Rewards of CLIP's kind: the cosine of prompt and frame, encoders of two libraries, HPSv2 and PickScore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.video.rewards.scores import Views, normalised, to_bytes
from mmspec.video.rewards.state_dicts import filled, named, weights_of


class ImageTextEncoder(Protocol):
    """Two towers of one space. `mmspec.zoo.load("clip")` is one."""

    def encode_images(self, images: Tensor) -> Tensor:
        """uint8 [N, 3, H, W] -> float32 [N, D], each of norm one."""
        ...

    def encode_texts(self, prompts: Sequence[str]) -> Tensor:
        """float32 [N, D], each of norm one."""
        ...


@dataclass(frozen=True)
class CosineReward:
    """scale * cosine, as a `Reward`.

    views: the squares of a frame that the encoder is shown; None for whole frames, which it brings to its size itself.
    """

    encoder: ImageTextEncoder
    scale: float = 1.0
    views: Views | None = None
    name: str = "cosine"

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """float32 [F], as `Reward`."""
        seen = to_bytes(frames)
        squares = seen if self.views is None else self.views(seen).flatten(0, 1)
        images = self.encoder.encode_images(squares)
        scores = self.scale * (images @ self.encoder.encode_texts([prompt])[0])
        return scores if self.views is None else self.views.joined(scores, len(frames))


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


Tokenizer = Callable[[list[str]], Tensor]
_OPEN_CLIP_FIELDS = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}
_COUNTED = "embeddings.position_ids"  # older files hold them
_H14 = {
    "projection_dim": 1024,
    "vision_config": {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16,
                      "patch_size": 14, "image_size": 224, "hidden_act": "gelu", "projection_dim": 1024},
    "text_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                    "hidden_act": "gelu", "projection_dim": 1024},
}  # fmt: skip


def hpsv2_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """HPSv2 or HPSv2.1 as a `Reward`: the cosine, unscaled ("Human Preference Score v2", arXiv 2306.09341).

    sd: tensors under open_clip's names, raw or under "state_dict", of any size; or a .safetensors file.
    config: open_clip's model config (embed_dim, vision_cfg, text_cfg); None for ViT-H-14, which is the published one.
    views: the whole frame in one square with black beside it where not given, as reports of its scores show frames to it.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    from open_clip import get_model_config
    from open_clip.model import CLIP

    fields = dict(config or get_model_config("ViT-H-14"))
    if unknown := sorted(fields.keys() - _OPEN_CLIP_FIELDS):
        raise ValueError(f"config: expected {', '.join(sorted(_OPEN_CLIP_FIELDS))}, got {unknown} too; remove them")
    weights = weights_of(sd)
    with named(sd):
        encoder = OpenClipEncoder(filled(lambda: CLIP(**fields), weights), tokenizer, batch)
    return CosineReward(encoder, views=views or Views(encoder.size, crops="letterbox"), name="HPSv2")


def pickscore_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """PickScore as a `Reward`: the cosine times the scale of training ("Pick-a-Pic", arXiv 2305.01569).

    sd: tensors under the names of transformers' CLIPModel, of any size; or a .safetensors file.
    config: of that model, as in its config.json; None for ViT-H-14, which is the published one.
    views: the centre crop where not given, as published.
    Raises ValueError, one sentence, for missing, unknown and misshapen tensors.
    """
    from transformers import CLIPConfig, CLIPModel

    weights = {name: value for name, value in weights_of(sd).items() if not name.endswith(_COUNTED)}
    with named(sd):
        encoder = TransformersClipEncoder(
            filled(lambda: CLIPModel(CLIPConfig(**(config or _H14))), weights), tokenizer, batch
        )
    return CosineReward(encoder, encoder.scale, views or Views(encoder.size), "PickScore")
