"""The captioner `vlm/smol`: a LLaVA of the zoo's vision tower, a window projector and a published text model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformers import (
    CLIPVisionModel,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerBase,
)

from mmspec.zoo.architectures.llava import PATCH, SIDE, llava_processor

WINDOW = 4  # patches per side
ROWS = 4  # rows of the text model per window
IMAGE_ROWS = (SIDE // WINDOW) ** 2 * ROWS
PICTURE = "<reponame>"  # an unused special token of SmolLM2, so that its embedding table keeps its size
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\n" + SYSTEM + "<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '" + PICTURE + "\\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ProjectorSize:
    vision: int = 192  # width of the patch features
    text: int = 576  # width of the text model
    inner: int = 96  # width of a patch between the layers
    side: int = SIDE  # patches per side of a picture
    window: int = WINDOW  # patches per side of a window
    rows: int = ROWS  # of a window

    def __post_init__(self) -> None:
        if min(self.vision, self.text, self.inner, self.side, self.window, self.rows) < 1 or self.side % self.window:
            raise ValueError(
                f"size: expected positive sizes and a window that divides the side, got {self}; change them"
            )


class WindowProjector(nn.Module):
    """A projector from patch features of square windows to rows of a text model. A linear map and GELU apply to every
    patch. All patches of a window then give its rows, in the reading order of windows. The layers are those of LLaVA's
    projector, with the window between them."""

    def __init__(self, size: ProjectorSize = ProjectorSize()) -> None:
        super().__init__()
        self.size = size
        self.linear_1 = nn.Linear(size.vision, size.inner)
        self.act = nn.GELU()
        self.linear_2 = nn.Linear(size.window**2 * size.inner, size.rows * size.text)

    @property
    def tokens_per_image(self) -> int:
        return (self.size.side // self.size.window) ** 2 * self.size.rows

    def windows(self, features: Tensor) -> Tensor:
        """Return the second layer's input, [B, (side / window)**2, window**2 * inner], of patches [B, side * side,
        vision]."""
        count = self.size.side // self.size.window
        return rearrange(
            self.act(self.linear_1(features)),
            "b (r p c q) d -> b (r c) (p q d)",
            r=count,
            c=count,
            p=self.size.window,
            q=self.size.window,
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return rows float [B, tokens_per_image, text] of patch features float [B, side * side, vision]."""
        return rearrange(self.linear_2(self.windows(features)), "b w (r d) -> b (w r) d", r=self.size.rows)


def picture_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the placeholder id of a picture's row."""
    token = tokenizer.convert_tokens_to_ids(PICTURE)
    if token is None or token == tokenizer.unk_token_id:
        raise ValueError(
            f"tokenizer: expected the token {PICTURE} in the vocabulary, got none; use SmolLM2's tokenizer"
        )
    return token


def compose(
    tower: CLIPVisionModel, projector: WindowProjector, language: Any, picture: int
) -> LlavaForConditionalGeneration:
    """Return a LLaVA in evaluation mode that contains the parts themselves, tower and projector converted in place to
    the precision of the language model. `picture` is the placeholder id of a picture's row."""
    text, size = language.config, projector.size
    if size.vision != tower.config.hidden_size or size.side * tower.config.patch_size != tower.config.image_size:
        raise ValueError(
            f"tower: expected {size.side} x {size.side} patches of {size.vision}, the projector's, got "
            f"{tower.config.image_size} pixels and {tower.config.hidden_size}; use another"
        )
    if size.text != text.hidden_size:
        raise ValueError(
            f"language: expected a width of {size.text}, the projector's, got {text.hidden_size}; use another"
        )
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=text,
        image_token_index=picture,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=projector.tokens_per_image,
        tie_word_embeddings=text.tie_word_embeddings,
        pad_token_id=text.pad_token_id,
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
    )
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config)
    model.model.vision_tower, model.model.multi_modal_projector = tower, projector
    model.model.language_model, model.lm_head = language.model, language.lm_head
    model.generation_config = GenerationConfig.from_model_config(config)
    return model.to(language.dtype).eval()


def new_processor(tokenizer: PreTrainedTokenizerBase) -> LlavaProcessor:
    """Return a processor that scales pictures to 96x96 in -1..1, with 36 image tokens each and SmolLM2's chat format."""
    tokenizer = deepcopy(tokenizer)
    tokenizer.padding_side = "left"
    # the processor counts squares of this side; a window has as many squares as rows
    square = PATCH * WINDOW // int(ROWS**0.5)
    return llava_processor(tokenizer, square, PICTURE, CHAT_TEMPLATE)
