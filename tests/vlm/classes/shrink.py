"""Tiny forms of any config: every size by its field's name, per-layer lists cut to the layers kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.vlm.classes.overrides import OVERRIDES

VOCAB, WORDS = 101, (5, 60)  # prompts draw ids from WORDS; special ids are dealt out from the top of the vocabulary
PAD, BOS, EOS = 0, 1, 2
SIDE, PATCH = 8, 4  # of pictures

# names whose size no pattern below tells
EXACT = {
    "attention_chunk_size": 256, "attn_layer_offset": 1, "attn_layer_period": 2, "axial_pos_embds_dim": [16, 16],
    "axial_pos_shape": [8, 16], "chunk_size": 16, "codebook_dim": 8, "conv_chunksize": 16, "d_head": 8, "d_kv": 8, "d_rel": 8,
    "cross_attention_layers": [1], "deepstack_visual_indexes": [0], "depths": [1, 1], "dim_model_base": 16,
    "expert_layer_offset": 0, "first_k_dense_replace": 1, "fullatt_block_indexes": [1], "full_attn_idxs": [0, 1],
    "global_attn_every_n_layers": 2, "global_attn_indexes": [1], "hidden_size_per_layer_input": 8, "image_size": SIDE,
    "index_head_dim": 8, "index_n_heads": 2, "index_topk": 512, "insert_layer_id": 1, "interleave_moe_layer_step": 1,
    "intermediate_layers_indices": [0, 1], "kv_channels": 8, "laurel_rank": 8, "layer_group_size": 2, "left_chunk": 4,
    "linear_head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_heads": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "lru_width": 32, "lsh_attn_chunk_length": 16,
    "local_attn_chunk_length": 16, "mamba_chunk_size": 8, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8,
    "mamba_dt_rank": 4, "mamba_head_dim": 16, "mamba_headdim": 16, "mamba_n_heads": 4, "mamba_num_heads": 4,
    "mamba_ngroups": 1, "mamba_n_groups": 1, "max_image_size": SIDE, "max_window_layers": 1, "merge_kernel_size": [2, 2],
    "mm_tokens_per_image": 4, "n_mamba_heads": 2, "n_groups": 1, "ngram_vocab_size_base": 50, "no_rope_layer_interval": 2,
    "num_dense_layers": 1, "num_position_embeddings": 16,
    "num_query_groups": 2, "num_query_tokens": 4, "latent_query_num": 4, "num_sliding_attention_heads": 4, "o_groups": 2,
    "num_nextn_predict_layers": 0,
    "patch_size": PATCH, "pos_emb_height": 4, "pos_emb_width": 4, "posemb_grid_size": 4, "prompt_length": 4,
    "position_embedding_size": 64, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_head_dim": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "query_pre_attn_scalar": 8, "rotary_dim": 4, "state_size": 8, "ssm_state_size": 8,
    "time_step_rank": 4, "topk_group": 1, "n_group": 1, "num_expert_group": 1, "v_head_dim": 8, "window_size": 16,
    "zero_expert_num": 2, "gated_norm_rank": 4, "hc_lowrank": 8, "rel_extent": 64, "resampler_n_latents": 4,
    "resampler_num_latents": 4, "vision_soft_tokens_per_image": 4, "num_image_tokens": 4, "image_seq_length": 4,
    "max_num_tiles": 2, "num_global_layers": 1, "num_hashes": 1, "projector_pooling_ratio": 1, "image_grid_pinpoints":
    [[8, 16], [16, 8], [16, 16]], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]], "hidden_sizes": [16, 32],
    "vocab_size": VOCAB, "decoder_vocab_size": VOCAB, "unpadded_vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB,
    "max_vit_seq_len": 64, "resolution": SIDE, "pooling_kernel_size": 1,
}  # fmt: skip

# the first pattern that fits a field's name decides
PATTERNS = (
    (r"(^|_)(vocab)(_size)?$", VOCAB),
    (r"head_dim$|head_size$|dim_head$|attention_head_dim", 8),
    (r"(kv|key_value)_heads$|kv_n_heads|num_kv", 2),
    (r"(^|_)heads$|n_head$|num_(decoder_|encoder_)?attention_heads", 4),
    (r"(^|_)(num_)?(hidden_|encoder_|decoder_|aligner_num_add_)?layers$|(^|_)n_layers?$", 2),
    (r"^depth$|num_blocks|resampler_depth", 2),
    (r"top_?k$|moe_k$|experts_per_tok(en)?$", 2),
    (r"num_experts$|local_experts$|routed_experts$", 4),
    (r"(inter|ffn|mlp|d_ff|dff|d_inner|inner|dim_ff|feed_forward|expert_dim|moe_hidden).*", 48),
    (
        r"(hidden|embed|d_model|emb|width|project|adapter|text_|vision_|output|input|conv|backbone|down|merged|attention_hid)"
        r".*(size|dim|width)$|^(dim|hidden_size|d_model|n_embd|emb_dim|embed_dim|proj.*|.*_hidden)$",
        32,
    ),
)
MULTIPLIERS = re.compile(r"ratio|mult|factor|kernel|chunk|stride|groups|num_hash|buckets|max_position|bp_cycles")
PER_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "no_rope_layers", "indexer_types", "moe_layers",
             "block_types", "attention_layers", "mlp_only_layers")  # fmt: skip
PATTERNED = ("intermediate_size",)  # lists of sizes, one per layer
UNSET = {"head_dim": 8, "num_key_value_heads": 2}  # sizes that some classes leave to the checkpoint


def shrink(config: dict, keep: int = 4) -> dict:
    """The fields of a config, made tiny. keep: most layers kept where their kinds differ."""
    ids = dict(zip(sorted(set(_special_ids(config))), range(VOCAB - 1, 0, -1), strict=False))
    return _shrunk(config, ids, keep)


def _special_ids(config: dict) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _special_ids(value)
        elif _is_id(name) and isinstance(value, int) and name.split("_")[0] not in ("pad", "bos", "eos"):
            yield name


def _is_id(name: str) -> bool:
    return bool(re.search(r"token_(id|index)$|(^|_)(start|end|newline|patch|text|im)_id$", str(name)))


def _shrunk(config: dict, ids: dict, keep: int) -> dict:
    kept = kept_layers(config, keep)
    count = _layer_count(config)
    small = {name: _field(name, value, ids, kept, keep, count) for name, value in config.items()}
    if "kv_lora_rank" in small and "num_key_value_heads" in small:  # latents are expanded to all heads
        small["num_key_value_heads"] = small["num_attention_heads"]
    for path, value in OVERRIDES.get(config.get("model_type"), {}).items():
        put(small, path, value)
    _fit_sections(small)
    return small


def put(fields: dict, path: str, value: object) -> None:
    """Sets `a.b` in nested fields."""
    *parts, last = path.split(".")
    for part in parts:
        fields = fields[part]
    fields[last] = value


def _fit_sections(config: dict) -> None:
    """Cuts M-RoPE sections to the tiny head; partial rotary gets a head of 16, else no frequency is left for an axis."""
    rope = config.get("rope_parameters") or {}
    for part in (rope, *(p for p in rope.values() if isinstance(p, dict))):
        if part.get("partial_rotary_factor", 1.0) < 0.5:
            part["partial_rotary_factor"] = 0.5  # of a head of 8
        if part.get("mrope_section"):
            share = part.get("partial_rotary_factor", 1.0)
            config["head_dim"] = 8 if share == 1.0 else 16
            rest = int(config["head_dim"] * share) // 2
            axes = len(part["mrope_section"])
            part["mrope_section"] = [rest // axes] * (axes - 1) + [rest - rest // axes * (axes - 1)]


def kept_layers(config: dict, keep: int) -> list[int]:
    """Indices of the layers that stay: the first of every kind, two at least."""
    count = _layer_count(config)
    lists = [v for n, v in config.items() if n in PER_LAYER and isinstance(v, list) and len(v) == count]
    kinds = list(zip(*lists, strict=True)) if lists else []
    found = {kinds.index(kind) for kind in kinds}
    if config.get("num_kv_shared_layers"):  # of every kind one that stores and one that reads
        found |= {count - 1 - kinds[::-1].index(kind) for kind in kinds}
    found = sorted(found)[:keep]
    return found if len(found) > 1 else [0, 1]


def _layer_count(config: dict) -> int:
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        if isinstance(config.get(name), int):
            return config[name]
    return max((len(v) for n, v in config.items() if n in PER_LAYER and isinstance(v, list)), default=2)


def _field(name: str, value: object, ids: dict, kept: list[int], keep: int, count: int) -> object:
    if name == "per_layer_config" and isinstance(value, dict):
        layers = {int(layer): own for layer, own in value.items()}
        return {kept.index(layer): _shrunk(layers[layer], ids, keep) for layer in kept if layer in layers}
    if isinstance(value, dict):
        return value if name in ("id2label", "label2id", "rope_parameters") else _shrunk(value, ids, keep)
    if name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers") and isinstance(value, int):
        return len(kept)
    if value is None and name in UNSET:
        return UNSET[name]
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return False if name == "tie_word_embeddings" else value
    if _is_id(name):
        first = name.split("_")[0]
        return {"pad": PAD, "bos": BOS, "eos": EOS}.get(first, ids.get(name, value))
    if isinstance(value, list | tuple) and len(value) == count > 4:
        cut = [value[i] for i in kept]
        return [_field(name, v, ids, kept, keep, count) for v in cut] if name in PATTERNED else cut
    if name == "num_kv_shared_layers":
        return 2 if value else 0
    name = str(name)
    if isinstance(value, int) and not value:
        return value
    if name in EXACT:
        return [EXACT[name]] * len(value) if isinstance(value, list) and isinstance(EXACT[name], int) else EXACT[name]
    if isinstance(value, int) and value > 4 and not MULTIPLIERS.search(name):
        return next((size for pattern, size in PATTERNS if re.search(pattern, name)), value)
    return value
