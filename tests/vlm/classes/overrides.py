"""What single configs need beside tiny sizes, by model_type, wherever that config stands."""

from __future__ import annotations

_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2}
_MOE = {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
_OCR_TEXT = {**_MOE, "mlp_layer_types": ["dense", "sparse"]}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 512,
    "indexer_compress_ratio": 4,
}
_SECTIONS = {"rope_parameters.mrope_section": [1, 1, 2]}  # cut to the head by `shrink`
_WHOLE = {"rope_type": "default", "rope_theta": 1e4}
_HALF = _WHOLE | {"partial_rotary_factor": 0.5}

_TIMM = {"model_type": "timm_wrapper", "architecture": "test_efficientnet", "hidden_size": 256, "model_args": None}
_UNIFIED = {
    "model_type": "gemma4_unified_vision",
    "patch_size": 4,
    "pooling_kernel_size": 1,
    "mm_embed_dim": 32,
    "mm_posemb_size": 16,
    "output_proj_dims": 32,
}
_CODES = range(32)  # of pictures that are read as tokens, from id 65 on
_EMU3_MAP = {f"<|visual token {code:06d}|>": 65 + code for code in _CODES} | {
    "<image>": 99,
    "<|extra_200|>": 61,
    "<|extra_201|>": 62,
    "<|image end|>": 63,
    "<|image token|>": 64,
    "<|image start|>": 98,
}
_CHAMELEON_MAP = {
    f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(code))}Z": 65 + code for code in _CODES
} | {"<image>": 99, "<racm3:break>": 98, "<eoss>": 97, "<s>": 1}
_SEEING = {"initializer_range": 0.02}
_GEMMA4_TOWER = {"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "patch_size": 4,
                 "pooling_kernel_size": 2, "position_embedding_size": 64}  # fmt: skip

OVERRIDES: dict[str, dict] = {
    "aria": {"projector_patch_to_query_dict": {4: 4}},
    "bamba": {"attn_layer_indices": [1], **_MAMBA2},
    "blip-2": {"image_token_index": 99},
    "blip_2_qformer": {"cross_attention_frequency": 1},
    "blip_2_vision_model": _SEEING,
    "chameleon": {"vocabulary_map": _CHAMELEON_MAP, "image_token_id": 99, "num_key_value_heads": 4},
    "chameleon_vqgan": {"embed_dim": 8, "num_embeddings": 32, "latent_channels": 32, "base_channels": 32,
                        "channel_multiplier": [1, 1], "num_res_blocks": 1},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _WHOLE, "sliding_attention": _WHOLE}},
    "apertus1p5": {"image_token_offset": 61, "audio_token_offset": 93, "vision_config.codebook_size": 32,
                   "audio_config.codebook_size": 4, "image_token_id": 99, "audio_token_id": 98},
    "dory": {"num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
             "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "wavtokenizer": {"codebook_dim": 32},
    "wavtokenizer_encoder": {"codebook_dim": 32},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "deepseek_ocr2_sam_vision_model": {"downsample_channels": [16, 32]},
    "deepseek_ocr2_text": _OCR_TEXT,
    "deepseek_v2": _MOE,
    "dots1": _MOE,
    "dots3_note_text": {"head_dim": 16},
    "emu3": {"vocabulary_map": _EMU3_MAP, "image_token_id": 99},
    "emu3_vqgan": {"codebook_size": 32, "embed_dim": 4, "latent_channels": 4, "base_channels": 32,
                   "channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": [], "temporal_downsample_factor": 1},
    "ernie4_5_vl_moe_text": {**_SECTIONS, "moe_intermediate_size": [48, 32]},
    "falcon_h1": {"mamba_d_ssm": 64, **_MAMBA2},
    "fast_vlm": {"vision_config": _TIMM | {"global_pool": "avg"}},
    "gemma3n": {"vision_config": _TIMM | {"model_type": "gemma3n_vision", "vocab_size": 8, "vocab_offset": 101},
                "audio_config.vocab_offset": 109, "audio_config.vocab_size": 8, "image_token_id": 100,
                "audio_token_id": 99},
    "gemma4": {"vision_config": _GEMMA4_TOWER},
    "gemma4_unified": {"vision_config": _UNIFIED},
    "glm46v_text": _SECTIONS,
    "glm4v_moe_text": _SECTIONS,
    "glm4v_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "gpt_neo": {"window_size": 256},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [0, 0, 0, 0],
                        "vision_config.hidden_size": 64, "qformer_config.hidden_size": 64,
                        "qformer_config.encoder_hidden_size": 64},
    "granite_docling_vision": {"scale_factor": 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], **_MAMBA2},
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "hunyuan_vl_text": {"rope_parameters.xdrope_section": [1, 1, 1, 1], "rope_parameters.mrope_section": [1, 1, 1, 1]},
    "instructblip": {"image_token_index": 99},
    "instructblip_qformer": {"cross_attention_frequency": 1},
    "instructblip_vision_model": _SEEING,
    "instructblipvideo": {"video_token_index": 99},
    "instructblipvideo_qformer": {"cross_attention_frequency": 1},
    "instructblipvideo_vision_model": _SEEING,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "llama4_vision_model": {"intermediate_size": 128},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "mimo_v2_flash": {"rope_parameters": {"full_attention": _HALF, "sliding_attention": _HALF}, "num_key_value_heads": 2},
    "minicpm_ocr": {"image_token_id": 99, "video_token_id": 98},
    "minicpmv4_6": {"image_token_id": 99, "video_token_id": 98},
    "minicpmv4_7": {"image_token_id": 99, "video_token_id": 98},
    "mistral4": {"head_dim": 16},
    "mistral_large4_text": {"kv_source_layers": [0, 1, 2]},
    "mllama_vision_model": {"vision_output_dim": 96},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "molmo2_text": {"additional_vocab_size": 8},
    "molmo2_vision": {"image_size": [8, 8], "num_position_embeddings": 4},
    "muse_glimmer": {"out_hidden_size": 128},
    "muse_spark": {"out_hidden_size": 128},
    "muse_spark_audio": {"patch_sizes": [4, 2], "hidden_sizes": [16, 32], "depths": [1, 1]},
    "nemotron_h_omni": {"image_token_id": 99, "video_token_id": 98, "audio_token_id": 97},
    "paddleocr_vl_text": _SECTIONS,
    "perception_lm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "test_vit",
                                        "model_args": {"embed_dim": 64, "img_size": [32, 32]}}},
    "pixtral": {"image_size": 32},
    "qwen2_5_omni_text": _SECTIONS,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 90},
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 90},
    "qwen4_exp_text": _INDEXER,
    "radio": {"max_img_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"num_buckets": 4},
    "step3p5": {"sliding_window": 512, "rope_parameters": {"full_attention": _WHOLE, "sliding_attention": _WHOLE}},
    "unlimited_ocr_sam_vision_model": {"downsample_channels": [16, 32]},
    "unlimited_ocr_text": _OCR_TEXT,
    "vipllava": {"vision_feature_layer": [-1, -2]},
    "xlstm": {"num_heads": 4, "hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 4, "mamba_headdim": 16,
               "hybrid_layer_ids": [1]},
}  # fmt: skip
