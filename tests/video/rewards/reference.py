"""ImageReward written out plainly from its description: tensors under the published names, no module, nothing folded."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

PUBLISHED = json.loads((Path(__file__).parent / "imagereward.json").read_text(encoding="utf-8"))
CONFIG = {
    "vision": {
        "img_size": 48,
        "patch_size": 16,
        "embed_dim": 24,
        "depth": 2,
        "num_heads": 3,
        "mlp_ratio": 3,
        "norm_eps": 1e-6,
    },
    "text": {
        "vocab_size": 30,
        "hidden_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 28,
        "max_position_embeddings": 40,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "encoder_width": 20,
    },
    "mlp": [20, 12, 8, 6, 4, 1],
}
_AT = (0, 2, 4, 6, 7)  # where the linear layers of the head stand among its dropouts


def published_shapes() -> dict[str, list[int]]:
    """Every key of the published file."""
    shapes = {}
    for key, shape in PUBLISHED["keys"].items():
        counts = [count for prefix, count in PUBLISHED["layer_counts"].items() if key.startswith(prefix)]
        shapes |= {key.replace("{i}", str(number)): shape for number in range(counts[0] if counts else 1)}
    return shapes


def small_shapes(config: dict = CONFIG) -> dict[str, list[int]]:
    """The same keys at the sizes of `config`: each published width stands for one of its fields."""
    vision, text, mlp = config["vision"], config["text"], config["mlp"]
    wide, hidden = vision["embed_dim"], text["hidden_size"]
    cells = (vision["img_size"] // vision["patch_size"]) ** 2 + 1
    sizes = {1024: wide, 768: hidden, 3072: text["intermediate_size"], 4096: wide * vision["mlp_ratio"], 197: cells}
    sizes |= {30524: text["vocab_size"], 512: text["max_position_embeddings"], 16: vision["patch_size"]}
    shapes = {}
    for key, shape in published_shapes().items():
        layer = next((part for part in key.split(".") if part.isdecimal()), "0")
        depth = vision["depth"] if "visual" in key else text["num_hidden_layers"]
        if key.startswith("mlp."):
            at = _AT.index(int(layer))
            shapes[key] = [mlp[at + 1], mlp[at]][: len(shape)]
        elif int(layer) < depth:
            stacked = 3 * wide if "qkv" in key else None
            shapes[key] = [stacked if stacked and size == 3072 else sizes.get(size, size) for size in shape]
    return shapes


def random_state(config: dict = CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """Every published key, at the sizes of `config`; large enough numbers that each of them shows in a score."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, shape in small_shapes(config).items():
        near = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
        state[key] = near + 0.3 * torch.randn(shape, generator=generator)
    state["blip.text_encoder.embeddings.position_ids"] = torch.arange(config["text"]["max_position_embeddings"])[None]
    return state


def score(state: dict[str, Tensor], pixels: Tensor, ids: Tensor, mask: Tensor, config: dict = CONFIG) -> Tensor:
    """float32 [N]."""
    hidden = text(state, vision(state, pixels, config["vision"]), ids, mask, config["text"])[:, 0]
    for at in _AT:
        hidden = linear(state, f"mlp.layers.{at}", hidden)
    return (hidden[:, 0] - 0.16717362830052426) / 1.0333394966054072


def vision(state: dict[str, Tensor], pixels: Tensor, sizes: dict) -> Tensor:
    at, eps = "blip.visual_encoder", sizes["norm_eps"]
    weight, bias = (state[f"{at}.patch_embed.proj.{name}"] for name in ("weight", "bias"))
    cells = F.conv2d(pixels, weight, bias, stride=sizes["patch_size"]).flatten(2).mT
    x = torch.cat([state[f"{at}.cls_token"].expand(len(pixels), -1, -1), cells], dim=1) + state[f"{at}.pos_embed"]
    for number in range(sizes["depth"]):
        block = f"{at}.blocks.{number}"
        queries, keys, values = linear(state, f"{block}.attn.qkv", norm(state, f"{block}.norm1", x, eps)).chunk(
            3, dim=-1
        )
        x = x + linear(state, f"{block}.attn.proj", attend(queries, keys, values, sizes["num_heads"]))
        x = x + linear(
            state, f"{block}.mlp.fc2", F.gelu(linear(state, f"{block}.mlp.fc1", norm(state, f"{block}.norm2", x, eps)))
        )
    return norm(state, f"{at}.norm", x, eps)


def text(state: dict[str, Tensor], image: Tensor, ids: Tensor, mask: Tensor, sizes: dict) -> Tensor:
    at, eps, heads = "blip.text_encoder", sizes["layer_norm_eps"], sizes["num_attention_heads"]
    places = state[f"{at}.embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(state, f"{at}.embeddings.LayerNorm", state[f"{at}.embeddings.word_embeddings.weight"][ids] + places, eps)
    for number in range(sizes["num_hidden_layers"]):
        layer = f"{at}.encoder.layer.{number}"
        for kind, seen, hidden in (("attention", None, mask), ("crossattention", image, None)):
            names = (f"{layer}.{kind}.self.{name}" for name in ("query", "key", "value"))
            sources = (x, x if seen is None else seen, x if seen is None else seen)
            parts = [linear(state, name, source) for name, source in zip(names, sources, strict=True)]
            out = linear(state, f"{layer}.{kind}.output.dense", attend(*parts, heads, hidden))
            x = norm(state, f"{layer}.{kind}.output.LayerNorm", x + out, eps)
        out = linear(state, f"{layer}.output.dense", F.gelu(linear(state, f"{layer}.intermediate.dense", x)))
        x = norm(state, f"{layer}.output.LayerNorm", x + out, eps)
    return x


def attend(queries: Tensor, keys: Tensor, values: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    split = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (queries, keys, values)]
    logits = split[0] @ split[1].mT / split[0].shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(mask[:, None, None] == 0, float("-inf"))
    return (logits.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].mT + state[f"{name}.bias"]


def norm(state: dict[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)
