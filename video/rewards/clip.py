"""CLIP-like rewards: the cosine of prompt and frame, encoders of two libraries, HPSv2 and PickScore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.io.validation import texts_of
from mmspec.video.rewards.scores import Views, normalised, to_bytes
from mmspec.video.rewards.state_dicts import filled, named, weights_of


class ImageTextEncoder(Protocol):
    """An image tower and a text tower with a shared space, such as `mmspec.zoo.load("clip")`."""

    def encode_images(self, images: Tensor) -> Tensor:
        """Return unit vectors float32 [N, D] of images uint8 [N, 3, H, W]."""

    def encode_texts(self, prompts: Sequence[str]) -> Tensor:
        """Return unit vectors float32 [N, D]."""


@dataclass(frozen=True)
class CosineReward:
    """The scaled cosine of frame and prompt, as a `Reward`.

    Args:
        encoder: The image and text encoder.
        scale: The factor of the cosine.
        views: The squares of a frame that the encoder reads; None for whole frames, which it resizes itself.
        name: The name in tables.
    """

    encoder: ImageTextEncoder
    scale: float = 1.0
    views: Views | None = None
    name: str = "cosine"

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """Return a score per frame, float32 [F]."""
        seen = to_bytes(frames)
        squares = seen if self.views is None else rearrange(self.views(seen), "f v c h w -> (f v) c h w")
        images = self.encoder.encode_images(squares)
        scores = self.scale * (images @ self.encoder.encode_texts([prompt])[0])
        return scores if self.views is None else self.views.joined(scores, len(frames))


Tokenizer = Callable[[list[str]], Tensor]
Features = Callable[[Tensor], Tensor]


class ClipEncoder:
    """An `ImageTextEncoder` of an open_clip model; its tokenizer gives ids int64 [N, T], None is that of CLIP."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer | None = None, batch: int = 16):
        self.model, self.batch = model, batch
        self.size, tokens, self._images, self._texts = self._parts(model)
        if tokenizer is None:
            from open_clip.tokenizer import SimpleTokenizer

            tokenizer = SimpleTokenizer(context_length=tokens)
        self.tokenizer = tokenizer

    def _parts(self, model: Any) -> tuple[int, int, Features, Features]:
        """Return a square's side, a prompt's tokens, and the functions from pixels and ids to features [N, D]."""
        side = model.visual.image_size
        return side if isinstance(side, int) else side[0], model.context_length, model.encode_image, model.encode_text

    @property
    def scale(self) -> float:
        """The factor of the cosine in training."""
        return self.model.logit_scale.exp().item()

    @torch.no_grad()
    def encode_images(self, images: Tensor) -> Tensor:
        """Return unit vectors float32 [N, D] of squares uint8 [N, 3, S, S]."""
        if images.dtype != torch.uint8 or images.shape[1:] != (3, self.size, self.size):
            raise ValueError(
                f"images: expected uint8 [N, 3, {self.size}, {self.size}], got {images.dtype} "
                f"{tuple(images.shape)}; cut them with Views(size={self.size})"
            )
        weight = self.model.logit_scale
        parts = [normalised(part.to(weight.device), weight.dtype) for part in images.split(self.batch)]
        return torch.cat([F.normalize(self._images(part).float(), dim=-1) for part in parts])

    @torch.no_grad()
    def encode_texts(self, prompts: str | Sequence[str]) -> Tensor:
        """Return unit vectors float32 [N, D], of a text alone [1, D]; long prompts are cut."""
        ids = self.tokenizer(texts_of("prompts", prompts)).to(self.model.logit_scale.device)
        return F.normalize(self._texts(ids).float(), dim=-1)


class TransformersClipEncoder(ClipEncoder):
    def _parts(self, model: Any) -> tuple[int, int, Features, Features]:
        vision, text = model.config.vision_config, model.config.text_config

        def images(pixels: Tensor) -> Tensor:
            return model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)

        def texts(ids: Tensor) -> Tensor:
            return model.text_projection(model.text_model(input_ids=ids).pooler_output)

        return vision.image_size, text.max_position_embeddings, images, texts


_OPEN_CLIP_FIELDS = {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"}
_COUNTED = "embeddings.position_ids"  # in older files
_H14 = {
    "projection_dim": 1024,
    "vision_config": {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "patch_size": 14,
        "image_size": 224,
        "hidden_act": "gelu",
        "projection_dim": 1024,
    },
    "text_config": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "hidden_act": "gelu",
        "projection_dim": 1024,
    },
}


def hpsv2_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """Load HPSv2 or HPSv2.1 as a `Reward`: the cosine, unscaled ("Human Preference Score v2", arXiv 2306.09341).

    Args:
        sd: Tensors of any size under open_clip's names, raw or under "state_dict"; or a .safetensors file.
        config: open_clip's model config (embed_dim, vision_cfg, text_cfg); None for the published ViT-H-14.
        tokenizer: From prompts to ids, int64 [N, T]; None for the published tokenizer.
        views: The squares of a frame; None for the whole frame in one square with black borders, as in reports.
        batch: Squares per pass.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen.
    """
    from open_clip import get_model_config
    from open_clip.model import CLIP

    fields = dict(config or get_model_config("ViT-H-14"))
    if unknown := sorted(fields.keys() - _OPEN_CLIP_FIELDS):
        raise ValueError(f"config: expected {', '.join(sorted(_OPEN_CLIP_FIELDS))}, got {unknown} too; remove them")
    weights = weights_of(sd)
    with named(sd):
        encoder = ClipEncoder(filled(lambda: CLIP(**fields), weights), tokenizer, batch)
    return CosineReward(encoder, views=views or Views(encoder.size, crops="letterbox"), name="HPSv2")


def pickscore_from_state_dict(
    sd: Mapping[str, Any] | str | Path,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    views: Views | None = None,
    batch: int = 16,
) -> CosineReward:
    """Load PickScore as a `Reward`: the cosine times the scale of training ("Pick-a-Pic", arXiv 2305.01569).

    Args:
        sd: Tensors of any size under the names of transformers' CLIPModel; or a .safetensors file.
        config: The fields of its config.json; None for the published ViT-H-14.
        tokenizer: From prompts to ids, int64 [N, T]; None for the published tokenizer.
        views: The squares of a frame; None for the centre crop, as published.
        batch: Squares per pass.

    Raises:
        ValueError: Tensors are missing, unknown or misshapen.
    """
    from transformers import CLIPConfig, CLIPModel

    weights = {name: value for name, value in weights_of(sd).items() if not name.endswith(_COUNTED)}
    with named(sd):
        encoder = TransformersClipEncoder(
            filled(lambda: CLIPModel(CLIPConfig(**(config or _H14))), weights), tokenizer, batch
        )
    return CosineReward(encoder, encoder.scale, views or Views(encoder.size), "PickScore")
