"""Parts of the zoo VLM in LLaVA-1.5's layout: a small CLIP tower, tokenizer, processor and configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from einops import repeat
from tokenizers import processors
from torch import Tensor, nn
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from mmspec.zoo.world.captions import (
    BRIEF_REQUESTS,
    IMAGINE_REQUESTS,
    REQUESTS,
    REVERSED_REQUESTS,
    brief_caption,
    caption,
)
from mmspec.zoo.world.language import word_byte_tokenizer
from mmspec.zoo.world.questions import many_turn, question
from mmspec.zoo.world.scene import BACKDROPS, COLORS, IMAGE_SIDE, KINDS, SIZES, TEXTURES, TONES, sample_scene

PATCH = 8
SIDE = IMAGE_SIDE // PATCH
PATCH_HEADS = {
    "color": (tuple(COLORS), 1.0),
    "kind": (KINDS, 1.5),
    "size": (tuple(SIZES), 0.5),
    "texture": (TEXTURES, 0.5),
    "tone": (tuple(TONES), 0.2),
    "backdrop": (BACKDROPS, 0.3),
    "row": (tuple(str(i) for i in range(SIDE)), 0.3),  # captions name places, so the tower must encode them
    "column": (tuple(str(i) for i in range(SIDE)), 0.3),
}


def tower_config() -> CLIPVisionConfig:
    """Return the config of the tower: four layers of 192 on 8-pixel patches, 144 patches of a 96x96 picture."""
    return CLIPVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        projection_dim=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        image_size=IMAGE_SIDE,
        patch_size=PATCH,
        attention_dropout=0.0,
    )


def grid_embedding(side: int, width: int) -> Tensor:
    """Return two-dimensional sine and cosine positions, float32 [side * side, width], similar for neighbours."""
    quarter = width // 4
    rate = torch.exp(-math.log(100.0) * torch.arange(quarter) / quarter)
    angle = torch.arange(side)[:, None] * rate  # [side, quarter]
    axis = torch.cat([angle.sin(), angle.cos()], dim=-1)  # [side, width / 2]
    rows, columns = repeat(axis, "r d -> (r c) d", c=side), repeat(axis, "c d -> (r c) d", r=side)
    return torch.cat([rows, columns], dim=-1)


def patch_features(tower: CLIPVisionModel, pixels: Tensor) -> Tensor:
    """Return the features of patches for a projector, float [B, 144, width], of pixels float [B, 3, 96, 96]."""
    return tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


class PatchReader(nn.Module):
    """A CLIP tower with a linear reading head for each property of the object at a patch."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        self.tower = tower
        width = tower.config.hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, len(names)) for name, (names, _) in PATCH_HEADS.items()})

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return the logits by head, [B, 144, classes], of pixels float [B, 3, 96, 96]."""
        hidden = patch_features(self.tower, pixels)
        return {name: head(hidden) for name, head in self.heads.items()}


def new_tower(seed: int = 0) -> CLIPVisionModel:
    """Return a new tower whose positions are initialised as a grid of sines."""
    torch.manual_seed(seed)
    tower = CLIPVisionModel(tower_config())
    table = next(p for name, p in tower.named_parameters() if name.endswith("position_embedding.weight"))
    with torch.no_grad():
        table[1:] = 0.3 * grid_embedding(SIDE, table.shape[1])
    return tower


BOS, EOS, PAD, IMAGE = "<s>", "</s>", "<pad>", "<image>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' }}"
    "{% if message['content'] is string %}{{ message['content'] + ' ' }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}{% endif %}"
    "{% else %}{{ 'ASSISTANT: ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TextSize:
    """Sizes of the Llama text model, whose heads are 64 wide."""

    layers: int = 8
    width: int = 256
    inner: int = 688

    def __post_init__(self) -> None:
        if self.layers < 1 or self.width < 64 or self.width % 64:
            raise ValueError(
                f"expected layers >= 1 and a multiple of 64 as width, got {self.layers} and {self.width}, change them"
            )


def chat_prompt(text: str, images: int = 1) -> str:
    """Return the LLaVA-1.5 prompt: `USER: <image>\\n{text} ASSISTANT:` with `images` placeholders."""
    return f"USER: {(IMAGE + chr(10)) * images}{text} ASSISTANT:"


def world_texts(scenes: int = 1500) -> tuple[list[str], list[str]]:
    prompts = [*REQUESTS, *REVERSED_REQUESTS, *BRIEF_REQUESTS, *IMAGINE_REQUESTS]
    answers = []
    for seed in range(scenes):
        scene = sample_scene(seed)
        answers += [caption(scene, seed), brief_caption(scene, seed)]
        for index in range(4):
            example = question(scene, index)
            prompts += [example.prompt, many_turn((scene, scene, scene), index)[0]]
            answers.append(example.answer)
    return prompts, answers


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with words of the world as single tokens over a 256-byte alphabet; every text round-trips."""
    prompts, answers = world_texts()
    # a prompt follows "<image>\n" in a first turn and "USER:" in a later turn
    texts = [chat_prompt(text, images).replace(IMAGE, "") for text in prompts for images in (0, 1)]
    tokenizer = word_byte_tokenizer((PAD, BOS, EOS, IMAGE), texts + [f" {text}" for text in answers])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[IMAGE],
        padding_side="left",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def new_processor() -> LlavaProcessor:
    """Return a processor that scales pictures to 96x96 in -1..1, with 144 image tokens each."""
    return llava_processor(new_tokenizer(), PATCH, IMAGE, CHAT_TEMPLATE)


def llava_processor(tokenizer: PreTrainedTokenizerBase, patch: int, image: str, chat_template: str) -> LlavaProcessor:
    """Return a processor that scales pictures to 96x96 in -1..1, with a token `image` per square of `patch` pixels."""
    side = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    image_processor = CLIPImageProcessor(
        size={"shortest_edge": IMAGE_SIDE}, crop_size=side, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=image,
        chat_template=chat_template,
    )


def new_model(tokenizer: PreTrainedTokenizerFast, size: TextSize = TextSize()) -> LlavaForConditionalGeneration:
    special = {name: tokenizer.convert_tokens_to_ids(name) for name in (PAD, BOS, EOS, IMAGE)}
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64,
        num_key_value_heads=size.width // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=special[PAD],
        bos_token_id=special[BOS],
        eos_token_id=special[EOS],
    )
    config = LlavaConfig(
        vision_config=tower_config(),
        text_config=text,
        image_token_index=special[IMAGE],
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=144,
        tie_word_embeddings=False,
        pad_token_id=special[PAD],
        bos_token_id=special[BOS],
        eos_token_id=special[EOS],
    )
    return LlavaForConditionalGeneration(config)
