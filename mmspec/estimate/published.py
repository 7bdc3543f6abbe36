"""Published models as data: their configs, and reported speedups with the settings that an estimate needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# the fields of the published configs that determine costs
_QWEN_LAYERS = [*(["linear_attention"] * 3), "full_attention"] * 8
CONFIGS: dict[str, dict[str, Any]] = {
    "llava-1.5-7b": {
        "model_type": "llava", "image_seq_length": 576, "image_token_index": 32000,
        "text_config": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                          "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
                          "projection_dim": 768},
    },
    "qwen2.5-vl-7b": {
        "model_type": "qwen2_5_vl", "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen2_5_vl_text", "hidden_size": 3584, "intermediate_size": 18944,
                        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064},
        "vision_config": {"model_type": "qwen2_5_vl", "depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
                          "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
                          "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
    },
    "qwen3.5-9b": {
        "model_type": "qwen3_5", "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12288, "head_dim": 256,
                        "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 248320,
                        "layer_types": _QWEN_LAYERS, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
        "vision_config": {"model_type": "qwen3_5", "depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
                          "num_heads": 16, "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2},
    },
    "llamagen-xl": {"dim": 1280, "n_layer": 36, "n_head": 20, "multiple_of": 256, "model_type": "t2i", "vocab_size": 16384,
                    "cls_token_num": 120, "caption_dim": 2048, "block_size": 256},
    "llamagen-3b": {"dim": 3200, "n_layer": 24, "n_head": 32, "multiple_of": 256, "model_type": "c2i", "vocab_size": 16384,
                    "cls_token_num": 1, "num_classes": 1000, "block_size": 576},
    "wan-1.3b": {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30, "text_dim": 4096,
                 "freq_dim": 256, "in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2]},
    "wan-14b": {"num_attention_heads": 40, "attention_head_dim": 128, "ffn_dim": 13824, "num_layers": 40, "text_dim": 4096,
                "freq_dim": 256, "in_channels": 16, "out_channels": 16, "patch_size": [1, 2, 2]},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublishedSpeedup:
    """A reported speedup with its accept length."""

    model: str  # a key of `CONFIGS`
    drafter: str
    accept_length: float  # values a pass, or the share of accepted blocks of a video
    length: int  # levels of its drafts
    nodes: int  # of its drafts; 0 for chains
    speedup: float | None  # None where no figure of this model is available
    paper: str  # and its hardware
    device: str = "a100"  # the nearest device of the table
    accept_from: str = ""  # origin of the accept length, where it is that of another model
    pictures: int = 1
    new_tokens: int = 200
    draft_vocabulary: int = 0  # rows of the drafter's head; 0 for the target's


_FOVEA = "FOVEA's common rig (A100 80 GB, greedy, 200 tokens)"
REPORTED = (
    PublishedSpeedup("llava-1.5-7b", "specvlm", 3.67, 7, 60, 2.11, "SpecVLM, greedy (latencies on MI250)"),
    PublishedSpeedup("llava-1.5-7b", "eagle", 3.59, 7, 60, 2.01, "SpecVLM's EagleVLM, greedy (latencies on MI250)"),
    PublishedSpeedup("qwen2.5-vl-7b", "msd", 3.45, 6, 40, 1.41, f"MSD in {_FOVEA}"),
    PublishedSpeedup("qwen2.5-vl-7b", "vispec", 3.72, 6, 40, 1.11, f"ViSpec in {_FOVEA}"),
    PublishedSpeedup("qwen2.5-vl-7b", "eagle3", 2.91, 6, 40, 1.36, f"EAGLE-3 in {_FOVEA}", draft_vocabulary=32000),
    PublishedSpeedup("qwen2.5-vl-7b", "lookup", 1.15, 10, 0, 1.06, f"prompt lookup in {_FOVEA}"),
    PublishedSpeedup("qwen3.5-9b", "dflash", 4.99, 15, 0, None, "", "h100", "DFlash on Qwen3.5-4B, GSM8K", 0, 512),
    PublishedSpeedup("qwen3.5-9b", "mtp", 4.78, 7, 0, None, "", "h100", "MTP on Qwen3.5-4B, GSM8K", 0, 512),
    PublishedSpeedup("llamagen-xl", "eagle", 2.42, 5, 60, 2.03, "Cool-SD's table of EAGLE-1 (hardware not at hand)",
                     pictures=0, new_tokens=256),
    PublishedSpeedup("llamagen-3b", "sjd", 2.25, 16, 0, None, "", "a100", "SJD on Lumina-mGPT", 0, 576),
    PublishedSpeedup("wan-14b", "small", 0.731, 1, 0, 1.59, "SDVG, threshold -0.7 (2 x RTX A6000)", pictures=0),
)  # fmt: skip
