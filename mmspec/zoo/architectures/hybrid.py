"""Parts of the hybrid zoo VLM in Qwen3.5's layout: gated delta layers, full attention layers and merged patches."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from mmspec.zoo.architectures.llava import world_texts
from mmspec.zoo.world.documents import REQUESTS, sample_document
from mmspec.zoo.world.language import word_byte_tokenizer
from mmspec.zoo.world.scene import COLORS, IMAGE_SIDE, SHAPES, TONES

PATCH, MERGE, FRAMES = 8, 2, 2
SIDE = IMAGE_SIDE // (PATCH * MERGE)  # side of a picture in tokens
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
SPECIAL = (PAD, START, END, VISION_START, VISION_END, IMAGE, VIDEO)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class HybridSize:
    """All heads are 32 wide."""

    kinds: str = "dfdfdf"  # of the text layers, "d" for gated delta and "f" for full attention
    width: int = 128  # of the text model
    inner: int = 200
    tower_width: int = 96
    tower_inner: int = 256
    tower_layers: int = 3

    def __post_init__(self) -> None:
        if not self.kinds or set(self.kinds) - {"d", "f"} or "f" not in self.kinds:
            raise ValueError(
                f"kinds: expected d for gated delta and at least one f for full attention, got {self.kinds!r}"
            )
        if min(self.width, self.tower_width) < 32 or self.width % 64 or self.tower_width % 32:
            raise ValueError(
                f"expected a width in 64s and a tower_width in 32s, got {self.width} and {self.tower_width}"
            )


def chat_prompt(text: str, images: int = 1) -> str:
    """Return the prompt of a turn in Qwen's layout, up to the start of the answer."""
    shown = f"{VISION_START}{IMAGE}{VISION_END}" * images
    return f"{START}user\n{shown}{text}{END}\n{START}assistant\n"


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with words of the world and its documents as single tokens, and numbers digit by digit."""
    prompts, answers = world_texts()
    documents = [word for seed in range(400) for word in sample_document(seed).text.replace(".", "").split()]
    # lines of a table and of a paragraph begin with a word, the others follow a space
    words = {word for word in (*documents, *COLORS, *SHAPES, *TONES) if word.isalpha()}
    words = [f"{space}{word}" for word in words for space in ("", " ")]
    tokenizer = word_byte_tokenizer(SPECIAL, [*prompts, *answers, *REQUESTS, *words, "user", "assistant"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START, VISION_START, VISION_END, IMAGE, VIDEO],
        padding_side="left",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def new_processor() -> Qwen3VLProcessor:
    """Return a processor that scales pictures to about 96x96 pixels in -1..1, with 36 image tokens each."""
    pixels, half = IMAGE_SIDE * IMAGE_SIDE, [0.5] * 3
    layout = dict(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=FRAMES, image_mean=half, image_std=half)
    size = {"shortest_edge": pixels, "longest_edge": pixels}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size, **layout),
        tokenizer=new_tokenizer(),
        video_processor=Qwen3VLVideoProcessor(size=size, **layout),
        chat_template=CHAT_TEMPLATE,
    )


def new_model(tokenizer: PreTrainedTokenizerFast, size: HybridSize = HybridSize()) -> Qwen3_5ForConditionalGeneration:
    """Return a newly initialised Qwen3.5 of `size` with tied embeddings."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    heads = size.width // 32
    names = {"d": "linear_attention", "f": "full_attention"}
    text = dict(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=len(size.kinds),
        layer_types=[names[kind] for kind in size.kinds],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=32,
        linear_num_key_heads=heads // 2,
        linear_num_value_heads=heads,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=ids[PAD],
        eos_token_id=ids[END],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 3, 3],
            "mrope_interleaved": True,
        },
    )
    tower = dict(
        depth=size.tower_layers,
        hidden_size=size.tower_width,
        intermediate_size=size.tower_inner,
        num_heads=size.tower_width // 32,
        patch_size=PATCH,
        spatial_merge_size=MERGE,
        temporal_patch_size=FRAMES,
        out_hidden_size=size.width,
        num_position_embeddings=(IMAGE_SIDE // PATCH) ** 2,
    )
    config = Qwen3_5Config(
        text_config=text,
        vision_config=tower,
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        tie_word_embeddings=True,
    )
    model = Qwen3_5ForConditionalGeneration(config)
    model.generation_config = GenerationConfig(pad_token_id=ids[PAD], eos_token_id=ids[END])
    return model
