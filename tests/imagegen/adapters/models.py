"""Tiny random image models of the supported transformers classes, prompts for them, and their own generation loops."""

from __future__ import annotations

from functools import cache

import torch
import transformers as hf
from torch import Tensor, nn

from mmspec.imagegen.adapters.prompts import left_padded
from tests.vlm.tiny import liven

PAD, BOS, EOS, BEGIN = 0, 1, 2, 3
SIDE, CODES = 4, 24
ROWS, COLS = 3, 4  # of Emu3's grid
SMALL, LARGE = (2, 3), (3, 4)  # GLM-Image's grids
VOCAB = 64
WORDS = range(40, VOCAB)

DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=BOS,
    eos_token_id=EOS,
    pad_token_id=PAD,
)
NAMES = ("janus", "emu3", "emu3_text", "chameleon", "glm_image")

# image tokens are neither together nor in the order of their codes
EMU3_IDS = {code: 39 - code for code in range(CODES)}
EMU3_MAP = {
    **{f"<|visual token {code:06d}|>": i for code, i in EMU3_IDS.items()},
    "<image>": 4,
    "<|extra_200|>": 5,
    "<|extra_201|>": 6,
    "<|image end|>": 7,
    "<|image token|>": 8,
    "<|image start|>": BEGIN,
}
CHAMELEON_IDS = {code: 10 + (5 * code) % CODES for code in range(CODES)}


def _letters(code: int) -> str:
    return "".join(chr(ord("A") + int(digit)) for digit in str(code))


CHAMELEON_MAP = {f"IMGIMG{_letters(code)}Z": i for code, i in CHAMELEON_IDS.items()} | {
    "<image>": 4,
    "<racm3:break>": BEGIN,
    "<eoss>": 5,
    "<s>": BOS,
}


def _janus() -> nn.Module:
    tower = dict(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=8,
        patch_size=2,
        mlp_ratio=1.0,
        projection_dim=32,
        num_image_tokens=SIDE * SIDE,
    )
    codes = dict(
        embed_dim=8,
        num_embeddings=CODES,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        projection_dim=32,
        image_token_embed_dim=32,
    )
    config = hf.JanusConfig(
        text_config=hf.LlamaConfig(**DECODER), vision_config=tower, vq_config=codes, image_token_id=4
    )
    return hf.JanusForConditionalGeneration(config)


def _emu3() -> nn.Module:
    codes = dict(
        codebook_size=CODES,
        embed_dim=4,
        latent_channels=4,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        attn_resolutions=[],
        hidden_size=32,
        temporal_downsample_factor=1,
    )
    config = hf.Emu3Config(text_config=DECODER, vq_config=codes, vocabulary_map=EMU3_MAP)
    return hf.Emu3ForConditionalGeneration(config)


def _emu3_text() -> nn.Module:
    return hf.Emu3ForCausalLM(hf.Emu3TextConfig(**DECODER))


def _chameleon() -> nn.Module:
    codes = dict(
        embed_dim=8,
        num_embeddings=CODES,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        resolution=2 * SIDE,
    )
    return hf.ChameleonForConditionalGeneration(
        hf.ChameleonConfig(**DECODER, vq_config=codes, vocabulary_map=CHAMELEON_MAP)
    )


def _glm_image() -> nn.Module:
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    tower = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, image_size=8, patch_size=2)
    config = hf.GlmImageConfig(
        text_config=dict(DECODER, rope_parameters=rope, vision_vocab_size=CODES + 4),
        vision_config=tower,
        vq_config=dict(embed_dim=8, num_embeddings=CODES, latent_channels=16),
        image_token_id=4,
        image_start_token_id=CODES,
        image_end_token_id=CODES + 1,
    )
    return hf.GlmImageForConditionalGeneration(config)


@cache
def tiny(name: str) -> nn.Module:
    """A two-layer model of the class; tests must leave it as they found it."""
    made = {"janus": _janus, "emu3": _emu3, "emu3_text": _emu3_text, "chameleon": _chameleon, "glm_image": _glm_image}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = made[name]().eval()
        liven(model)
        if name == "janus":
            nn.init.normal_(model.model.generation_embeddings.weight)
            head = nn.init.normal_(model.model.generation_head.vision_head.weight)
            head.data -= head.data.mean(1, keepdim=True)  # its inputs have a mean, which would favour one code
    settings = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    settings.generation_kwargs = {"boi_token_id": BEGIN}
    model.generation_config = settings
    return model.requires_grad_(False)


def prompts(lengths: tuple[int, ...], seed: int = 0) -> tuple[Tensor, ...]:
    """Random prompts: beginning of sentence, words, begin of image."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.tensor(list(WORDS))
    return tuple(
        torch.cat([torch.tensor([BOS]), words[torch.randint(len(words), (n,), generator=rng)], torch.tensor([BEGIN])])
        for n in lengths
    )


def batch(rows: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Rows as a processor hands them over: left padded, with a mask."""
    ids, real, _ = left_padded(rows, torch.device("cpu"))
    return {"input_ids": ids, "attention_mask": real.long()}


def grids(count: int) -> dict[str, Tensor]:
    """What GLM-Image's processor adds: the large grid, then the small one, for every prompt."""
    return {
        "image_grid_thw": torch.tensor([(1, *LARGE), (1, *SMALL)] * count),
        "images_per_sample": torch.full((count,), 2),
    }
