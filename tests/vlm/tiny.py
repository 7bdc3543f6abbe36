"""Tiny random models of the supported classes and prompts for them, made without a processor."""

from __future__ import annotations

from functools import cache

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

VOCAB, HIDDEN = 101, 32
PAD, IMAGE, VIDEO, VISION_START, VISION_END = 0, 97, 98, 95, 96
VLMS = ("llava", "llava_next", "onevision", "qwen2_5_vl", "qwen3_vl")
TEXT = ("llama", "qwen2", "qwen3", "mistral")
VIDEO_KINDS = ("onevision", "qwen2_5_vl", "qwen3_vl")
SIDE, PATCH = 8, 4  # of vision towers that read square tiles
PINPOINTS = [[8, 16], [16, 8], [16, 16]]

_DECODER = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=1024,
    bos_token_id=1,
    eos_token_id=None,
    pad_token_id=PAD,
)
_TOWER = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH
)
_QWEN_TOWER = dict(
    depth=2,
    hidden_size=16,
    intermediate_size=24,
    num_heads=2,
    patch_size=PATCH,
    spatial_merge_size=2,
    temporal_patch_size=2,
    out_hidden_size=HIDDEN,
)
_QWEN_IDS = dict(
    image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=VISION_START, vision_end_token_id=VISION_END
)


def _config(kind: str) -> hf.PreTrainedConfig:
    if kind == "llava":
        return hf.LlavaConfig(
            vision_config=hf.CLIPVisionConfig(**_TOWER), text_config=hf.LlamaConfig(**_DECODER), image_token_id=IMAGE
        )
    if kind == "llava_next":
        return hf.LlavaNextConfig(
            vision_config=hf.CLIPVisionConfig(**_TOWER),
            text_config=hf.MistralConfig(**_DECODER, sliding_window=None),
            image_token_id=IMAGE,
            image_grid_pinpoints=PINPOINTS,
        )
    if kind == "onevision":
        return hf.LlavaOnevisionConfig(
            vision_config=hf.SiglipVisionConfig(**_TOWER, vision_use_head=False),
            text_config=hf.Qwen2Config(**_DECODER),
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            image_grid_pinpoints=PINPOINTS,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
    if kind == "qwen2_5_vl":
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
        return hf.Qwen2_5_VLConfig(
            vision_config=dict(_QWEN_TOWER, window_size=16, fullatt_block_indexes=[1]),
            text_config=dict(_DECODER, rope_parameters=rope),
            **_QWEN_IDS,
        )
    if kind == "qwen3_vl":
        rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
        return hf.Qwen3VLConfig(
            vision_config=dict(_QWEN_TOWER, deepstack_visual_indexes=[0], num_position_embeddings=16),
            text_config=dict(_DECODER, rope_parameters=rope),
            **_QWEN_IDS,
        )
    if kind == "mistral":
        return hf.MistralConfig(**_DECODER, sliding_window=None)
    return {"llama": hf.LlamaConfig, "qwen2": hf.Qwen2Config, "qwen3": hf.Qwen3Config}[kind](**_DECODER)


_CLASS = {
    "llava": hf.LlavaForConditionalGeneration,
    "llava_next": hf.LlavaNextForConditionalGeneration,
    "onevision": hf.LlavaOnevisionForConditionalGeneration,
    "qwen2_5_vl": hf.Qwen2_5_VLForConditionalGeneration,
    "qwen3_vl": hf.Qwen3VLForConditionalGeneration,
    "llama": hf.LlamaForCausalLM,
    "qwen2": hf.Qwen2ForCausalLM,
    "qwen3": hf.Qwen3ForCausalLM,
    "mistral": hf.MistralForCausalLM,
}


@cache
def tiny(kind: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> nn.Module:
    """A two-layer model of the class, one object per kind: tests must leave it as they found it."""
    config = _config(kind)
    config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = _CLASS[kind](config).eval()
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=1)
    return model.to(dtype).requires_grad_(False)


@torch.no_grad()
def liven(model: nn.Module) -> None:
    """Scales random weights so that what is generated varies with the whole context and near-ties are rare."""
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        gain = 3.0 if any(part in name for part in ("q_proj", "k_proj", "attn.qkv")) else 1.5
        if "embed" in name:
            weight.normal_(0, 1.0)
        elif "lm_head" in name:
            weight.normal_(0, 2.0)
        else:
            weight.normal_(0, gain / weight[0].numel() ** 0.5)


def prompt(
    kind: str, images: int = 0, where: str = "middle", batch: int = 1, video: bool = False, seed: int = 0
) -> dict[str, Tensor]:
    """Inputs of `generate`. images: pictures in each row. where: start, middle, end, or "echo" (the last tokens also
    stand right before the picture). batch 4 is ragged, left padded, and its rows hold images, 0, 1 and images of them.
    """
    rng = torch.Generator().manual_seed(seed)
    model = tiny(kind)
    counts = [images] if batch == 1 else [images, 0, min(images, 1), images][:batch]
    pixels, lengths = _pictures(kind, model, counts, rng)
    if video:
        movie, frames = _movie(kind, model, batch, rng)
    rows, kinds = [], []
    for row, count in enumerate(counts):
        spans = [[IMAGE] * next(lengths) for _ in range(count)]
        spans += [[VIDEO] * n for n in frames] if video else []
        ids = _lay_out(kind, spans, where, torch.randint(5, 90, (40,), generator=rng).tolist(), 5 + 3 * row)
        rows.append(ids)
        kinds.append([{IMAGE: 1, VIDEO: 2}.get(i, 0) for i in ids])
    inputs = dict(pixels, **(movie if video else {}))
    inputs["input_ids"], inputs["attention_mask"] = _pad_left(rows)
    if kind.startswith("qwen") and kind.endswith("vl") and (images or video):
        inputs["mm_token_type_ids"] = _pad_left(kinds)[0]
    return inputs


def _lay_out(kind: str, spans: list[list[int]], where: str, words: list[int], length: int) -> list[int]:
    if kind in ("qwen2_5_vl", "qwen3_vl"):  # neighbours must not merge into one picture
        spans = [[VISION_START, *span, VISION_END] for span in spans]
    first, last, tail = words[:length], words[length : 2 * length], words[-4:]
    if where == "start":
        return [i for span in spans for i in span] + first
    if where == "end":
        ids = first + [i for span in spans for i in span]
        return ids[:-1] if ids[-1] == VISION_END else ids
    if where == "echo":
        return first + tail + [i for span in spans for i in span] + last + tail
    ids = list(first)
    for n, span in enumerate(spans):
        ids += span + words[20 + 2 * n : 22 + 2 * n]
    return ids + last


def _pad_left(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(r)) + r for r in rows])
    mask = torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows])
    return ids, mask


def _pictures(kind: str, model: nn.Module, counts: list[int], rng: torch.Generator) -> tuple[dict, iter]:
    total = sum(counts)
    if not total:
        return {}, iter(())
    if kind == "llava":
        inputs = {"pixel_values": torch.randn(total, 3, SIDE, SIDE, generator=rng)}
    elif kind in ("llava_next", "onevision"):
        sizes = torch.tensor([[7, 15], [13, 16], [16, 9]])[torch.arange(total) % 3]
        inputs = {"pixel_values": torch.randn(total, 5, 3, SIDE, SIDE, generator=rng), "image_sizes": sizes}
        if kind == "onevision":
            inputs["batch_num_images"] = torch.tensor([c for c in counts if c])
    else:
        grid = torch.tensor([[1, 4, 4], [1, 4, 6], [1, 6, 4]])[torch.arange(total) % 3]
        inputs = {"pixel_values": _patches(grid, rng), "image_grid_thw": grid}
    with torch.no_grad():
        features = model.model.get_image_features(**inputs, return_dict=True).pooler_output
    return inputs, iter([len(f) for f in features])


def _movie(kind: str, model: nn.Module, batch: int, rng: torch.Generator) -> tuple[dict, list[int]]:
    """One video of two frames (or two pairs of frames) a row, and the placeholder runs it fills in a row."""
    if kind == "onevision":
        return {"pixel_values_videos": torch.randn(batch, 2, 3, SIDE, SIDE, generator=rng)}, [2 + 1]
    grid = torch.tensor([[2, 4, 4]] * batch)
    inputs = {"pixel_values_videos": _patches(grid, rng), "video_grid_thw": grid}
    return inputs, [4, 4] if kind == "qwen3_vl" else [8]


def _patches(grid: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(int(grid.prod(-1).sum()), 3 * 2 * PATCH * PATCH, generator=rng)


@cache
def words() -> hf.PreTrainedTokenizerFast:
    """A tokenizer over the tiny vocabulary: id n is the word wn. Stop strings want "abcdef" to have an id, 3 here."""
    vocabulary = {f"w{i}": i for i in range(VOCAB) if i != 3} | {"abcdef": 3}
    splitter = Tokenizer(models.WordLevel(vocabulary, unk_token="w4"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=splitter, pad_token="w0")
