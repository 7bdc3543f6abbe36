"""EAGLE-3 and P-EAGLE of the `speculators` format as plain torch over a whole sequence, and random files of it.

Written from the description of the format alone: no cache, no tree, every sequence from its start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.vlm.tiny import HIDDEN, VOCAB

I, HEADS, GROUPS, DIM, DRAFTED, WINDOW = 48, 4, 2, 16, 60, 6
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e3,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e3,
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 32,
}
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": WINDOW, "use_sliding_window": True}

# fields of the config, and of its layer
OPTIONS: dict[str, tuple[dict, dict]] = {
    "plain": ({}, {}),
    "window": ({}, SLIDING),
    "qwen3": ({}, {"model_type": "qwen3"}),
    "norm_before_fc": ({"norm_before_fc": True}, {}),
    "fc_norm": ({"fc_norm": True}, {}),
    "norm_output": ({"norm_output": True}, {}),
    "attention_bias": ({}, {"attention_bias": True}),
    "mlp_bias": ({}, {"mlp_bias": True}),
    "layers": ({}, {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                    "sliding_window": WINDOW}),
    "llama3": ({}, {"rope_parameters": LLAMA3}),
    "yarn": ({}, {"rope_parameters": YARN}),
    "narrow": ({"target_hidden_size": HIDDEN, "fc_norm": True}, {"hidden_size": 24}),
    "trained": ({"norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
                {**SLIDING, "rope_parameters": LLAMA3}),
    "everything": ({"fc_norm": True, "norm_output": True, "norm_before_residual": True},
                   {"model_type": "qwen3", "num_hidden_layers": 2, "attention_bias": True, "rope_parameters": YARN,
                    "layer_types": ["sliding_attention"] * 2, "sliding_window": WINDOW, "use_sliding_window": True}),
}  # fmt: skip


def published(
    option: str = "plain", embedding: Tensor | None = None, **others: object
) -> tuple[dict, dict[str, Tensor]]:
    """The config and the weights of a random file.

    embedding: of the file; None for random rows.   others: fields of the config.
    """
    top, inner = OPTIONS[option]
    layer = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": I, "head_dim": DIM,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "attention_bias": False, "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3}, **inner,
    }  # fmt: skip
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFTED,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": layer,
        **top,
        **others,
    }
    return config, weights(config, embedding)


def weights(config: dict, embedding: Tensor | None = None) -> dict[str, Tensor]:
    """Random tensors of a config under the names of the format, so large that every part shows in the logits."""
    rng = torch.Generator().manual_seed(0)
    layer, levels = config["transformer_layer_config"], len(config["eagle_aux_hidden_state_layer_ids"])
    width = layer["hidden_size"]
    if embedding is not None and embedding.shape[1] != width:
        embedding = None  # the target's has another width

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=rng) * 1.5 / columns**0.5

    def norm(size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=rng)

    ids = torch.arange(DRAFTED) + 7
    state = {
        "embed_tokens.weight": torch.randn(VOCAB, width, generator=rng) if embedding is None else embedding,
        "fc.weight": matrix(width, levels * HIDDEN),
        "norm.weight": norm(width),
        "lm_head.weight": matrix(DRAFTED, width) * 2,
        "layers.0.hidden_norm.weight": norm(width),
        "d2t": ids - torch.arange(DRAFTED),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True),
    }
    if config.get("norm_before_fc"):
        state["input_norm.weight"] = norm(levels * HIDDEN)
    if config.get("fc_norm"):
        state |= {f"fc_norm.{n}.weight": norm(HIDDEN) for n in range(levels)}
    if config["speculators_model_type"] == "peagle":
        state["mask_hidden"] = torch.randn(1, 1, levels * HIDDEN, generator=rng)
    for n in range(layer["num_hidden_layers"]):
        read, own = (width if n else 2 * width), f"layers.{n}."
        sizes = {
            "self_attn.q_proj": (HEADS * DIM, read),
            "self_attn.k_proj": (GROUPS * DIM, read),
            "self_attn.v_proj": (GROUPS * DIM, read),
            "self_attn.o_proj": (width, HEADS * DIM),
            "mlp.gate_proj": (I, width),
            "mlp.up_proj": (I, width),
            "mlp.down_proj": (width, I),
        }
        for name, size in sizes.items():
            state[f"{own}{name}.weight"] = matrix(*size)
            if layer["mlp_bias" if name.startswith("mlp") else "attention_bias"]:
                state[f"{own}{name}.bias"] = torch.randn(size[0], generator=rng) * 0.3
        state |= {f"{own}{name}_layernorm.weight": norm(width) for name in ("input", "post_attention")}
        if layer["model_type"] == "qwen3":
            state |= {f"{own}self_attn.{x}_norm.weight": norm(DIM) for x in "qk"}
    return state


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def turns(rope: dict, dim: int) -> tuple[Tensor, float]:
    """The angle of each pair of numbers a position, and the factor of cos and sin."""
    base, kind = rope["rope_theta"], rope["rope_type"]
    plain = [base ** (-2 * n / dim) for n in range(dim // 2)]
    if kind == "default":
        return torch.tensor(plain), 1.0
    factor, known = rope["factor"], rope["original_max_position_embeddings"]
    if kind == "llama3":  # long waves are stretched, short ones are not, those in between in part
        low, high, made = rope["low_freq_factor"], rope["high_freq_factor"], []
        for angle in plain:
            turned = known * angle / (2 * math.pi)  # whole turns within the context of the training
            share = min(max((turned - low) / (high - low), 0.0), 1.0)
            made.append(share * angle + (1 - share) * angle / factor)
        return torch.tensor(made), 1.0

    def pair(turned: float) -> float:  # the number of the pair that makes so many turns
        return dim * math.log(known / (turned * 2 * math.pi)) / (2 * math.log(base))

    first, last = max(math.floor(pair(rope["beta_fast"])), 0), min(math.ceil(pair(rope["beta_slow"])), dim - 1)
    ramp = [min(max((n - first) / max(last - first, 0.001), 0.0), 1.0) for n in range(dim // 2)]
    made = [r * angle / factor + (1 - r) * angle for r, angle in zip(ramp, plain, strict=True)]
    return torch.tensor(made), 0.1 * math.log(factor) + 1.0


def rotated(x: Tensor, position: Tensor, rope: dict) -> Tensor:
    """x [heads, n, dim] at positions [n]."""
    frequency, factor = turns(rope, x.shape[-1])
    angle = position[:, None] * frequency
    a, b = x.chunk(2, -1)
    return factor * torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Reference:
    """The drafter of a file."""

    def __init__(self, config: dict, state: dict[str, Tensor]):
        self.config, self.state, self.layer = config, state, config["transformer_layer_config"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def joined(self, levels: Tensor) -> Tensor:
        """The states of the target's levels side by side [n, levels * H] as one [n, H]."""
        if self.config.get("norm_before_fc"):
            levels = rms(levels, self.state["input_norm.weight"])
        if self.config.get("fc_norm"):
            parts = levels.split(HIDDEN, -1)
            levels = torch.cat([rms(x, self.state[f"fc_norm.{n}.weight"]) for n, x in enumerate(parts)], -1)
        return self.linear(levels, "fc")

    def outputs(self, embeds: Tensor, states: Tensor, position: Tensor | None = None) -> Tensor:
        """Outputs [n, H] of pairs of embeddings and states [n, H]; a pair sees those before it, as far as windows reach."""
        position = torch.arange(len(embeds)) if position is None else position
        normed = rms(states, self.state["layers.0.hidden_norm.weight"])
        x = torch.cat([rms(embeds, self.state["layers.0.input_layernorm.weight"]), normed], -1)
        residual = normed if self.config["norm_before_residual"] else states
        kinds = self.layer.get("layer_types") or ["full_attention"] * self.layer["num_hidden_layers"]
        for n, kind in enumerate(kinds):
            own = f"layers.{n}."
            if n:
                x = rms(residual, self.state[f"{own}input_layernorm.weight"])
            residual = residual + self.attended(x, position, own, kind == "sliding_attention")
            y = rms(residual, self.state[f"{own}post_attention_layernorm.weight"])
            gate, up = self.linear(y, f"{own}mlp.gate_proj"), self.linear(y, f"{own}mlp.up_proj")
            residual = residual + self.linear(F.silu(gate) * up, f"{own}mlp.down_proj")
        return rms(residual, self.state["norm.weight"]) if self.config.get("norm_output") else residual

    def attended(self, x: Tensor, position: Tensor, own: str, sliding: bool) -> Tensor:
        parts = [self.linear(x, f"{own}self_attn.{name}_proj").unflatten(-1, (-1, DIM)) for name in "qkv"]
        q, k, v = (part.transpose(0, 1) for part in parts)
        if self.layer["model_type"] == "qwen3":
            q, k = (
                rms(q, self.state[f"{own}self_attn.q_norm.weight"]),
                rms(k, self.state[f"{own}self_attn.k_norm.weight"]),
            )
        q, k = (rotated(y, position, self.layer["rope_parameters"]) for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // GROUPS, 0) for y in (k, v))
        distance = position[:, None] - position
        seen = (distance >= 0) & (distance < self.layer["sliding_window"] if sliding else distance >= 0)
        weight = (q @ k.transpose(-1, -2) / DIM**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        return self.linear((weight @ v).transpose(0, 1).flatten(1), f"{own}self_attn.o_proj")

    def scores(self, out: Tensor) -> Tensor:
        """Scores [..., V], minus infinity for tokens that are never drafted."""
        normed = out if self.config.get("norm_output") else rms(out, self.state["norm.weight"])
        full = torch.full((*out.shape[:-1], VOCAB), -torch.inf)
        full[..., torch.arange(DRAFTED) + self.state["d2t"]] = self.linear(normed, "lm_head")
        return full

    def draft(self, embeds: Tensor, levels: Tensor, path: Iterable[Tensor]) -> Tensor:
        """The output behind a drafted path: true pairs [n, H] and [n, levels * H], then each token's embedding [H] with the
        drafter's own output before it."""
        states = self.joined(levels)
        out = self.outputs(embeds, states)[-1:]
        for embed in path:
            embeds, states = torch.cat([embeds, embed[None]]), torch.cat([states, out])
            out = self.outputs(embeds, states)[-1:]
        return out[0]
