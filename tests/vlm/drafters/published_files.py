"""Published drafters: their configs, the names and shapes of their files, and small random files laid out the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.vlm.tiny import HIDDEN, VOCAB

Shapes = dict[str, tuple[int, ...]]

SMALL = dict(hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, vocab_size=VOCAB)
SMALL_DRAFT_VOCAB = 60


def layer(c: dict, prefix: str, read: int = 1, bias: bool = False) -> Shapes:
    """A Llama layer without its first norm, whose queries, keys and values are read from `read` times the width."""
    width, inner, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    kv = width // heads * c.get("num_key_value_heads", heads)
    rows = {"q": width, "k": kv, "v": kv}
    shapes = {f"{prefix}self_attn.{x}_proj.weight": (n, read * width) for x, n in rows.items()}
    if bias:
        shapes |= {f"{prefix}self_attn.{x}_proj.bias": (n,) for x, n in rows.items()}
    return shapes | {
        f"{prefix}self_attn.o_proj.weight": (width, width),
        f"{prefix}mlp.gate_proj.weight": (inner, width),
        f"{prefix}mlp.up_proj.weight": (inner, width),
        f"{prefix}mlp.down_proj.weight": (width, inner),
        f"{prefix}post_attention_layernorm.weight": (width,),
    }


def eagle2(c: dict) -> Shapes:
    width = c["hidden_size"]
    return {
        "embed_tokens.weight": (c["vocab_size"], width),
        **layer(c, "layers.0."),
        "fc.weight": (width, 2 * width),
        "fc.bias": (width,),
    }


def msd_qwen(c: dict) -> Shapes:
    return {**eagle2(c), **layer(c, "layers.0.", bias=True), "layers.0.input_layernorm.weight": (c["hidden_size"],)}


def vispec(c: dict) -> Shapes:
    width, heads, bias = c["hidden_size"], c["num_attention_heads"], c.get("qkv_bias", False)
    shapes = {**eagle2(c), **layer(c, "layers.0.", bias=bias), "imadpt.q": (2, heads, width // heads)}
    shapes |= {f"imadpt.{x}_proj.weight": (width, width) for x in "kvo"}
    if bias:
        shapes |= {f"imadpt.{x}_proj.bias": (width,) for x in "kv"}
    return {**shapes, "img_fc.weight": (width, 2 * width), "img_fc.bias": (width,)}


def eagle3(c: dict, prefix: str = "midlayer.") -> Shapes:
    inner = c.get("transformer_layer_config", c)
    width, vocab, kept = inner["hidden_size"], inner["vocab_size"], c["draft_vocab_size"]
    return {
        "d2t": (kept,),
        "t2d": (vocab,),
        "lm_head.weight": (kept, width),
        **layer(inner, prefix, read=2),
        f"{prefix}hidden_norm.weight": (width,),
        f"{prefix}input_layernorm.weight": (width,),
        "fc.weight": (width, 3 * width),
        "norm.weight": (width,),
    }


def speculators(c: dict) -> Shapes:
    inner = c["transformer_layer_config"]
    return {"embed_tokens.weight": (inner["vocab_size"], inner["hidden_size"]), **eagle3(c, "layers.0.")}


@dataclass(frozen=True)
class Published:
    """One published file. model: the tiny target its small twin drafts for.   parameters: of the whole public module, its
    embedding included.   small: what the small config says beside the sizes."""

    kind: str
    config: dict[str, Any]
    shapes: Callable[[dict], Shapes]
    parameters: int
    model: str
    small: dict[str, Any] = field(default_factory=dict)

    @property
    def small_config(self) -> dict[str, Any]:
        """The published fields at the size of the tiny targets."""
        sizes = {**SMALL, **self.small}
        if "num_key_value_heads" in self.config:
            sizes.setdefault("num_key_value_heads", 4)
        config = dict(self.config)
        if "draft_vocab_size" in config:
            config["draft_vocab_size"] = SMALL_DRAFT_VOCAB
            config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 1]
        if "transformer_layer_config" in config:
            return dict(config, transformer_layer_config={**config["transformer_layer_config"], **sizes, "head_dim": 8})
        return {**config, **sizes}


_LLAMA = dict(
    bos_token_id=1,
    eos_token_id=2,
    hidden_act="silu",
    initializer_range=0.02,
    num_hidden_layers=1,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    torch_dtype="float16",
    use_cache=True,
    model_type="llama",
    vocab_size=32000,
    architectures=["LlamaForCausalLM"],
    pad_token_id=0,
)
_7B = dict(hidden_size=4096, intermediate_size=11008, num_attention_heads=32)
_13B = dict(hidden_size=5120, intermediate_size=13824, num_attention_heads=40, num_key_value_heads=40)
_QWEN_7B = dict(hidden_size=3584, intermediate_size=18944, num_attention_heads=28, vocab_size=152064)
_MSD = dict(
    _LLAMA,
    architectures=["LlavaLlamaForCausalLM"],
    model_type="llava",
    max_length=4096,
    mm_hidden_size=1024,
    mm_projector_type="mlp2x_gelu",
    mm_vision_select_layer=-2,
    image_aspect_ratio="pad",
    rms_norm_eps=1e-5,
    rope_scaling=None,
    use_mm_proj=True,
    pretraining_tp=1,
)
_QWEN = dict(
    bos_token_id=151643,
    eos_token_id=151645,
    attention_dropout=0.0,
    hidden_act="silu",
    max_window_layers=28,
    num_hidden_layers=1,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    sliding_window=32768,
    use_sliding_window=False,
    tie_word_embeddings=False,
    torch_dtype="bfloat16",
)
_NEXT = dict(
    _LLAMA,
    architectures=["LlavaNextForConditionalGeneration"],
    model_type="llava_next",
    rms_norm_eps=1e-5,
    rope_scaling=None,
    vocab_size=32064,
)
_LLAMA3 = dict(
    hidden_size=4096,
    intermediate_size=14336,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    rms_norm_eps=1e-5,
)
_GROUPED = dict(num_key_value_heads=2)

PUBLISHED: dict[str, Published] = {
    "EAGLE-Vicuna-7B-v1.3": Published("eagle2", {**_LLAMA, **_7B}, eagle2, 367009792, "llama"),
    "EAGLE-llama2-chat-7B": Published(
        "eagle", {**_LLAMA, **_7B, "num_key_value_heads": 32, "rope_scaling": None}, eagle2, 367009792, "llava"
    ),
    "EAGLE3-LLaMA3.1-Instruct-8B": Published(
        "eagle3", {**_LLAMA, **_LLAMA3, "draft_vocab_size": 32000}, eagle3, 950026240, "llama", _GROUPED
    ),
    "speculators EAGLE-3 for Llama-3.1-8B": Published(
        "eagle3",
        dict(
            architectures=["Eagle3Speculator"], draft_vocab_size=32000, eagle_aux_hidden_state_layer_ids=None,
            fc_norm=False, norm_before_fc=False, norm_before_residual=True, norm_output=False, target_hidden_size=None,
            speculators_model_type="eagle3", tie_word_embeddings=False,
            transformer_layer_config=dict(
                _LLAMA3, attention_bias=False, mlp_bias=False, head_dim=128, hidden_act="silu", model_type="llama",
                num_hidden_layers=1, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
            ),
        ),
        speculators, 950026240, "llava", _GROUPED,
    ),
    "MSD-LLaVA1.5-7B": Published("msd", {**_MSD, **_7B, "num_key_value_heads": 32}, eagle2, 367009792, "llava"),
    "MSD-LLaVA1.5-13B": Published("msd", {**_MSD, **_13B}, eagle2, 533473280, "llava"),
    "MSD-Qwen2VL-7B-Instruct": Published(
        "msd",
        dict(
            _QWEN, **_QWEN_7B, architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl",
            num_key_value_heads=4, max_position_embeddings=32768, image_token_id=151655, video_token_id=151656,
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}, vision_config={"depth": 32, "patch_size": 14},
        ),
        msd_qwen, 803748864, "qwen2_5_vl", _GROUPED,
    ),
    "ViSpec-llava-v1.6-vicuna-7b-hf": Published(
        "vispec", {**_NEXT, **_7B, "num_key_value_heads": 32}, vispec, 451170304, "llava_next"
    ),
    "ViSpec-llava-v1.6-vicuna-13b-hf": Published("vispec", {**_NEXT, **_13B}, vispec, 664888320, "llava_next"),
    "ViSpec-Qwen2.5-VL-3B-Instruct": Published(
        "vispec",
        dict(
            _QWEN, architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl", qkv_bias=True,
            hidden_size=2048, intermediate_size=11008, num_attention_heads=16, num_key_value_heads=16, vocab_size=151936,
        ),
        vispec, 424955904, "qwen2_5_vl",
    ),
    "ViSpec-Qwen2.5-VL-7B-Instruct": Published(
        "vispec",
        dict(
            _QWEN, **_QWEN_7B, architectures=["Qwen2_5_VLForConditionalGeneration"], model_type="qwen2_5_vl",
            qkv_bias=True, num_key_value_heads=28,
        ),
        vispec, 890014720, "qwen2_5_vl",
    ),
}  # fmt: skip


def random_file(shapes: Shapes, device: str = "cpu") -> dict[str, Tensor]:
    """Half-precision tensors of these shapes; norms near one, and the buffers of a reduced vocabulary as they must be."""
    state = {}
    for name, shape in shapes.items():
        state[name] = torch.randn(shape, device=device).mul_(0.1).half()
        if "norm" in name:
            state[name] += 1
    if "d2t" in shapes:
        kept, vocab = shapes["d2t"][0], shapes["t2d"][0]
        ids = torch.arange(kept) * (vocab // kept)
        state["d2t"] = ids - torch.arange(kept)
        state["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return state
