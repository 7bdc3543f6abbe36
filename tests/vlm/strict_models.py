"""Small random models wide enough that passes of several widths round differently in bfloat16 too, with near ties planted."""

from __future__ import annotations

from functools import cache

import torch
import transformers as hf
from torch import Tensor, nn

from tests.vlm.tiny import IMAGE, PAD, PATCH, SIDE, VOCAB, liven

KINDS = ("llama", "llava", "window")
WINDOW = 24
_DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=256,
    intermediate_size=520,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=PAD,
)
_TOWER = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH
)
# spread of the difference between two rows of the head, of a row's own spread, that a dtype can hardly tell apart
_NEAR = {torch.float32: 1e-7, torch.bfloat16: 3e-3}


def _config(kind: str) -> hf.PreTrainedConfig:
    if kind == "llava":
        text, tower = hf.LlamaConfig(**_DECODER), hf.CLIPVisionConfig(**_TOWER)
        return hf.LlavaConfig(vision_config=tower, text_config=text, image_token_id=IMAGE)
    if kind == "window":
        return hf.MistralConfig(**_DECODER, sliding_window=WINDOW)
    return hf.LlamaConfig(**_DECODER)


_CLASS = {"llama": hf.LlamaForCausalLM, "llava": hf.LlavaForConditionalGeneration, "window": hf.MistralForCausalLM}


@cache
def model_of(kind: str, dtype: torch.dtype, attention: str = "sdpa") -> nn.Module:
    """One object per kind and dtype. Every odd token's row of the head is nearly that of the even one before it."""
    config = _config(kind)
    config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = _CLASS[kind](config).eval()
        liven(model)
        head = model.get_output_embeddings().weight
        with torch.no_grad():
            even = head[: VOCAB - 1 : 2]
            head[1::2] = even + _NEAR[dtype] * even.std() * torch.randn_like(even)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=1)
    return model.to(dtype).requires_grad_(False)


def inputs_of(kind: str, batch: int, seed: int = 0, length: int = 31) -> dict[str, Tensor]:
    """Prompts of several lengths, left padded; each shows a picture where the kind takes them."""
    rng = torch.Generator().manual_seed(seed)
    picture = [IMAGE] * 4 if kind == "llava" else []
    rows = [[1, *picture, *torch.randint(5, 90, (length - 6 * row,), generator=rng).tolist()] for row in range(batch)]
    longest = max(map(len, rows))
    made = {
        "input_ids": torch.tensor([[PAD] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
    }
    if picture:
        made["pixel_values"] = torch.randn(batch, 3, SIDE, SIDE, generator=rng)
    return made


def row_of(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row's request, alone and without padding."""
    keep = inputs["attention_mask"][row].bool()
    one = {name: value[row : row + 1] for name, value in inputs.items()}
    return one | {name: one[name][:, keep] for name in ("input_ids", "attention_mask")}
