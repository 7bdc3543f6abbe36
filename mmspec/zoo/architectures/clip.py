"""The zoo's CLIP: open_clip's model at 64x64 pictures and the words of the world's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from PIL import Image
from torch import Tensor

from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, LONGEST, image_prompt_tokenizer
from mmspec.zoo.world.pixels import image_pixels


@dataclass(frozen=True, slots=True)
class ClipSize:
    """Widths and depths of both towers and of the space they share."""

    space: int = 128
    layers: tuple[int, ...] = (1, 2, 2, 1)
    width: int = 12
    text_width: int = 72
    text_layers: int = 2
    text_heads: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.layers) != 4 or min(self.layers) < 1 or self.width < 2 or self.width % 2:
            raise ValueError(
                f"ClipSize: expected four stages of blocks and an even width, got {self.layers} and {self.width}; change them"
            )
        if self.text_width % self.text_heads:
            raise ValueError(
                f"text_width: expected a multiple of {self.text_heads} heads, got {self.text_width}; change it"
            )


def new_clip(size: ClipSize = ClipSize(), seed: int | None = 0) -> CLIP:
    """A freshly initialised open_clip model: its ResNet with attention pooling, which learns shapes from far fewer pictures
    than a ViT, and a text tower that reads `image_prompt_tokenizer()` ids up to the end token.

    seed: None leaves torch's random numbers alone, for weights that will be read.
    """
    if seed is not None:
        torch.manual_seed(seed)
    tokenizer = image_prompt_tokenizer()
    vision = CLIPVisionCfg(layers=size.layers, width=size.width, head_width=8 * size.width, image_size=IMAGE_SCENE_SIDE)
    text = CLIPTextCfg(
        context_length=LONGEST, vocab_size=len(tokenizer), width=size.text_width, heads=size.text_heads,
        layers=size.text_layers, pad_id=tokenizer.pad_token_id, eos_id=tokenizer.eos_token_id, pool_type="eos",
    )  # fmt: skip
    return CLIP(size.space, vision, text)


def token_ids(prompts: Sequence[str]) -> Tensor:
    """int64 [N, 32], padded behind the end token, which a longer prompt keeps."""
    encoded = image_prompt_tokenizer()(list(prompts), padding="max_length", truncation=True, max_length=LONGEST)
    return torch.tensor(encoded["input_ids"])


@dataclass(frozen=True, slots=True)
class ImageClip:
    """A CLIP model with its tokenizer and picture format: features float32 [N, 128], each of norm one."""

    model: CLIP

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image] | Tensor, batch: int = 64) -> Tensor:
        """Features of PIL images, or of a uint8 tensor [N, 3, H, W] or [N, H, W, 3]; other sizes are brought to 64x64.

        Raises ValueError for any other tensor.
        """
        device = self.model.logit_scale.device
        parts = image_pixels(images).split(batch)
        return torch.cat([self.model.encode_image(part.to(device), normalize=True).float() for part in parts])

    @torch.no_grad()
    def encode_texts(self, prompts: Sequence[str], batch: int = 256) -> Tensor:
        """Features of prompts in the world's words; a word the world lacks reads as one unknown token."""
        device = self.model.logit_scale.device
        parts = token_ids(prompts).split(batch)
        return torch.cat([self.model.encode_text(part.to(device), normalize=True).float() for part in parts])

    def score(self, images: Sequence[Image.Image] | Tensor, prompts: Sequence[str]) -> Tensor:
        """Cosine of every image with its own prompt, float32 [N]."""
        return F.cosine_similarity(self.encode_images(images), self.encode_texts(prompts), dim=-1)
