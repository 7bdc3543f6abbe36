"""The zoo VLM's pieces: tokenizer, processor and model configuration, in LLaVA-1.5's layout."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import processors
from transformers import (
    CLIPImageProcessor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from ..world.captions import (
    BRIEF_REQUESTS,
    IMAGINE_REQUESTS,
    REQUESTS,
    REVERSED_REQUESTS,
    brief_caption,
    caption,
)
from ..world.many import many_turn
from ..world.questions import question
from ..world.scene import sample_scene
from ..world.words import IMAGE_SIDE
from .vision_tower import PATCH, tower_config
from .word_bytes import word_byte_tokenizer

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
    """Depth and width of the Llama text model; heads are 64 wide."""

    layers: int = 8
    width: int = 256
    inner: int = 688

    def __post_init__(self) -> None:
        if self.layers < 1 or self.width < 64 or self.width % 64:
            raise ValueError(
                f"expected layers >= 1 and a multiple of 64 as width, got {self.layers} and {self.width}, change them"
            )


def chat_prompt(text: str, images: int = 1) -> str:
    """The LLaVA-1.5 prompt: `USER: <image>\\n{text} ASSISTANT:` with `images` placeholders."""
    return f"USER: {(IMAGE + chr(10)) * images}{text} ASSISTANT:"


def world_texts(scenes: int = 1500) -> tuple[list[str], list[str]]:
    """What is asked about scenes and what is answered, with every phrasing the world has."""
    prompts = [*REQUESTS, *REVERSED_REQUESTS, *BRIEF_REQUESTS, *IMAGINE_REQUESTS]
    answers = []
    for seed in range(scenes):
        scene = sample_scene(seed)
        answers += [caption(scene, seed), brief_caption(scene, seed)]
        for index in range(4):
            asked = question(scene, index)
            prompts += [asked.prompt, many_turn((scene, scene, scene), index)[0]]
            answers.append(asked.answer)
    return prompts, answers


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words of the world as single tokens over a 256-byte alphabet: every text encodes and decodes back."""
    prompts, answers = world_texts()
    # a prompt follows "<image>\n" in a first turn and "USER:" in a later one
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
    """Pictures to 96x96 in -1..1 and 144 image tokens each."""
    side = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    image_processor = CLIPImageProcessor(
        size={"shortest_edge": IMAGE_SIDE}, crop_size=side, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=new_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    )


def new_model(tokenizer: PreTrainedTokenizerFast, size: TextSize = TextSize()) -> LlavaForConditionalGeneration:
    """A freshly initialised LLaVA-1.5 with the zoo's tower and a Llama of `size`."""
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
