"""What single configs need beside tiny sizes, by model_type, wherever that config stands."""

from __future__ import annotations

_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
_MOE = {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
_OCR_TEXT = {**_MOE, "mlp_layer_types": ["dense", "sparse"]}
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 512,
            "indexer_compress_ratio": 4}  # fmt: skip
_SECTIONS = {"rope_parameters.mrope_section": [1, 1, 2]}  # cut to the head by `shrink`
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}

OVERRIDES: dict[str, dict] = {
    "aria": {"projector_patch_to_query_dict": {4: 4}},
    "bamba": {"attn_layer_indices": [1], **_MAMBA2},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "deepseek_ocr2_text": _OCR_TEXT,
    "deepseek_v2": _MOE,
    "dots1": _MOE,
    "dots3_note_text": {"head_dim": 16},
    "falcon_h1": {"mamba_d_ssm": 64, **_MAMBA2},
    "glm46v_text": _SECTIONS,
    "glm4v_moe_text": _SECTIONS,
    "glm4v_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "gpt_neo": {"window_size": 256},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], **_MAMBA2},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "hunyuan_vl_text": {"rope_parameters.xdrope_section": [1, 1, 1, 1], "rope_parameters.mrope_section": [1, 1, 1, 1]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "mimo_v2_flash": {"rope_parameters": {"full_attention": _HALF, "sliding_attention": _HALF}, "num_key_value_heads": 2},
    "mistral4": {"head_dim": 16},
    "mistral_large4_text": {"kv_source_layers": [0, 1, 2]},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "molmo2_text": {"additional_vocab_size": 8},
    "molmo2_vision": {"image_size": [8, 8], "num_position_embeddings": 4},
    "muse_spark_audio": {"patch_sizes": [4, 2], "hidden_sizes": [16, 32], "depths": [1, 1]},
    "paddleocr_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_5_omni_text": _SECTIONS,
    "qwen4_exp_text": _INDEXER,
    "radio": {"max_img_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"num_buckets": 4},
    "step3p5": {"sliding_window": 512, "swiglu_limits": None},
    "unlimited_ocr_text": _OCR_TEXT,
    "xlstm": {"num_heads": 4, "hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 4, "mamba_headdim": 16,
               "hybrid_layer_ids": [1]},
}  # fmt: skip
