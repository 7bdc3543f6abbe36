"""The zoo's CLIP: open_clip's model for 64x64 pictures and prompts of the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from PIL import Image
from torch import Tensor

from mmspec.io.validation import texts_of, whole
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE, LONGEST, image_prompt_tokenizer
from mmspec.zoo.world.pixels import image_pixels


@dataclass(frozen=True, slots=True)
class ClipSize:
    space: int = 128  # width of the space that both towers share
    layers: tuple[int, ...] = (1, 2, 2, 1)  # blocks in each of the four stages of the ResNet
    width: int = 12  # channels of the ResNet
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
    """Return a new open_clip model with a ResNet, which learns shapes from far fewer pictures than a ViT. `seed` None
    leaves torch's generator unchanged, for weights that will be loaded."""
    if seed is not None:
        torch.manual_seed(seed)
    tokenizer = image_prompt_tokenizer()
    vision = CLIPVisionCfg(layers=size.layers, width=size.width, head_width=8 * size.width, image_size=IMAGE_SCENE_SIDE)
    text = CLIPTextCfg(
        context_length=LONGEST,
        vocab_size=len(tokenizer),
        width=size.text_width,
        heads=size.text_heads,
        layers=size.text_layers,
        pad_id=tokenizer.pad_token_id,
        eos_id=tokenizer.eos_token_id,
        pool_type="eos",
    )
    return CLIP(size.space, vision, text)


def token_ids(prompts: Sequence[str]) -> Tensor:
    """Return int64 [N, 32], padded after the end token; a truncated prompt has an end token too."""
    encoded = image_prompt_tokenizer()(
        texts_of("prompts", prompts), padding="max_length", truncation=True, max_length=LONGEST
    )
    return torch.tensor(encoded["input_ids"])


@dataclass(frozen=True, slots=True)
class ImageClip:
    """A CLIP model with its tokenizer and picture format."""

    model: CLIP

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image] | Tensor, batch: int = 64) -> Tensor:
        """Return unit features, float32 [N, 128], of PIL images, or uint8 [N, 3, H, W] or [N, H, W, 3], scaled to
        64x64."""
        device = self.model.logit_scale.device
        parts = image_pixels(images).split(whole("batch", batch, 1))
        return torch.cat([self.model.encode_image(part.to(device), normalize=True).float() for part in parts])

    @torch.no_grad()
    def encode_texts(self, prompts: Sequence[str], batch: int = 256) -> Tensor:
        """Return unit features of prompts, float32 [N, 128]. An unknown word becomes the unknown token."""
        device = self.model.logit_scale.device
        parts = token_ids(prompts).split(whole("batch", batch, 1))
        return torch.cat([self.model.encode_text(part.to(device), normalize=True).float() for part in parts])

    def score(self, images: Sequence[Image.Image] | Tensor, prompts: Sequence[str]) -> Tensor:
        """Return the cosine of every image with its own prompt, float32 [N]."""
        seen, read = self.encode_images(images), self.encode_texts(prompts)
        if len(seen) != len(read):
            raise ValueError(f"prompts: expected {len(seen)}, one for each image, got {len(read)}; align them")
        return F.cosine_similarity(seen, read, dim=-1)
