"""The published MAR, written out row by row over its own state dict."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


def linear(x: Tensor, state: State, name: str) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(x: Tensor, state: State, name: str) -> Tensor:
    return plain_norm(x) * state[f"{name}.weight"] + state[f"{name}.bias"]


def plain_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def block(x: Tensor, state: State, name: str, heads: int) -> Tensor:
    q, k, v = linear(norm(x, state, f"{name}.norm1"), state, f"{name}.attn.qkv").chunk(3, -1)
    size = x.shape[-1] // heads
    out = []
    for part in range(heads):
        mine = slice(part * size, (part + 1) * size)
        out.append(torch.softmax(q[:, mine] @ k[:, mine].T / math.sqrt(size), -1) @ v[:, mine])
    x = x + linear(torch.cat(out, -1), state, f"{name}.attn.proj")
    hidden = F.gelu(linear(norm(x, state, f"{name}.norm2"), state, f"{name}.mlp.fc1"))
    return x + linear(hidden, state, f"{name}.mlp.fc2")


def condition(tokens: Tensor, mask: Tensor, label: int, state: State, heads: tuple[int, int]) -> Tensor:
    """z [L, width] of one row, as `decoder_input` takes it."""
    x, number = decoder_input(tokens, mask, label, state, heads[0]), 0
    while f"decoder_blocks.{number}.norm1.weight" in state:
        x, number = block(x, state, f"decoder_blocks.{number}", heads[1]), number + 1
    return conditions(x, state)


def conditions(x: Tensor, state: State) -> Tensor:
    """z [L, width] of what the decoder's last block gives of buffer and tokens."""
    place = state["diffusion_pos_embed_learned"][0]
    return norm(x, state, "decoder_norm")[-len(place) :] + place


def decoder_input(tokens: Tensor, mask: Tensor, label: int, state: State, heads: int) -> Tensor:
    """[P + L, width], what the decoder's first block is given of P buffer positions and L tokens of one row.

    tokens: [L, d].   mask: bool [L].   label: -1 for no class.   heads: of the encoder.
    """
    own = state["fake_latent"][0] if label < 0 else state["class_emb.weight"][label]
    buffer = state["encoder_pos_embed_learned"].shape[1] - len(tokens)
    whole = torch.cat((own.expand(buffer, -1), linear(tokens, state, "z_proj")))
    x = norm(whole + state["encoder_pos_embed_learned"][0], state, "z_proj_ln")
    shown = torch.cat((torch.ones(buffer, dtype=torch.bool), ~mask))
    x, number = x[shown], 0
    while f"encoder_blocks.{number}.norm1.weight" in state:
        x, number = block(x, state, f"encoder_blocks.{number}", heads), number + 1
    x = linear(norm(x, state, "encoder_norm"), state, "decoder_embed")
    canvas = state["mask_token"][0].repeat(len(shown), 1)
    canvas[shown] = x
    return canvas + state["decoder_pos_embed_learned"][0]


def head(x: Tensor, t: int, z: Tensor, state: State) -> Tensor:
    """[R, 2 d] of states [R, d], one timestep of training, conditions [R, width]."""
    angle = t * torch.exp(-math.log(10000) * torch.arange(128) / 128)
    name = "diffloss.net"
    time = linear(torch.cat((angle.cos(), angle.sin()))[None], state, f"{name}.time_embed.mlp.0")
    y = F.silu(linear(F.silu(time), state, f"{name}.time_embed.mlp.2") + linear(z, state, f"{name}.cond_embed"))
    x, number = linear(x, state, f"{name}.input_proj"), 0
    while f"{name}.res_blocks.{number}.in_ln.weight" in state:
        own = f"{name}.res_blocks.{number}"
        shift, scale, gate = linear(y, state, f"{own}.adaLN_modulation.1").chunk(3, -1)
        hidden = norm(x, state, f"{own}.in_ln") * (1 + scale) + shift
        x, number = x + gate * linear(F.silu(linear(hidden, state, f"{own}.mlp.0")), state, f"{own}.mlp.2"), number + 1
    shift, scale = linear(y, state, f"{name}.final_layer.adaLN_modulation.1").chunk(2, -1)
    return linear(plain_norm(x) * (1 + scale) + shift, state, f"{name}.final_layer.linear")


def reverse_step(
    x: Tensor, t: int, before: int | None, out: Tensor, null: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """mean and log variance of the state at the kept timestep `before` given that at t; None behind the last one.

    out, null: of both branches; null None for no guidance.
    """

    def kept(step: int) -> float:
        return math.prod(1 - min(1 - level(n + 1) / level(n), 0.999) for n in range(step + 1))

    def level(step: int) -> float:
        return math.cos((step / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2

    now, then = kept(t), 1.0 if before is None else kept(before)
    beta = 1 - now / then
    noise, share = out.chunk(2, -1)[0], (out.chunk(2, -1)[1] + 1) / 2
    if null is not None:
        noise = null.chunk(2, -1)[0] + scale * (noise - null.chunk(2, -1)[0])
    clean = (x - math.sqrt(1 - now) * noise) / math.sqrt(now)
    mean = (math.sqrt(then) * beta * clean + math.sqrt(1 - beta) * (1 - then) * x) / (1 - now)
    least = beta * (1 - then) / (1 - now)
    return mean, share * math.log(beta) + (1 - share) * math.log(least) if least else torch.full_like(mean, torch.nan)
