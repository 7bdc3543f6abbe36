"""What block rows see, by each convention, against attention written out with a mask of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.block_layers import attention_biases
from mmspec.vlm.drafters.dflash import DFlash

WIDTH, HEADS, GROUPS, DIM, BLOCK, W = 16, 4, 2, 8, 5, 4
CONTEXT = 11
SIZES = dict(
    hidden_size=WIDTH,
    intermediate_size=24,
    num_attention_heads=HEADS,
    num_key_value_heads=GROUPS,
    head_dim=DIM,
    vocab_size=20,
    num_hidden_layers=2,
    rms_norm_eps=1e-6,
    rope_theta=100.0,
)
KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": W}
OWN = {"target_layer_ids": [0, 1], "mask_token_id": 19, "block_size": BLOCK}
TOP = {"block_size": BLOCK, "mask_token_id": 19, "aux_hidden_state_layer_ids": [1, 2]}


def zlab(**own: object) -> dict:
    return {**SIZES, **KINDS, **own, "dflash_config": OWN | own.get("dflash_config", {})}


def speculators(**top: object) -> dict:
    return {"transformer_layer_config": {**SIZES, **KINDS}, **TOP, **top}


def zlab_window(q: int, k: int, root: int) -> bool:
    return q >= k > q - W


def both_ways(q: int, k: int, root: int) -> bool:
    return abs(q - k) < W


def from_root(q: int, k: int, root: int) -> bool:
    return root - W <= k < root or root <= k <= q


def from_root_both_ways(q: int, k: int, root: int) -> bool:
    return k >= root - W


def muse(q: int, k: int, root: int) -> bool:
    return abs(q - k) <= W


def causal(q: int, k: int, root: int) -> bool:
    return k <= q


def everything(q: int, k: int, root: int) -> bool:
    return True


Sees = Callable[[int, int, int], bool]
CONVENTIONS: dict[str, tuple[dict, Sees, Sees]] = {  # config, what sliding and what full layers show
    "z-lab": (zlab(), zlab_window, everything),
    "z-lab, not causal": (zlab(is_causal=False), both_ways, everything),
    "z-lab, causal": (zlab(is_causal=True), zlab_window, causal),
    "inside dflash_config": (zlab(dflash_config={"causal": False}), both_ways, everything),
    "the top has the last word": (zlab(is_causal=False, dflash_config={"causal": True}), both_ways, everything),
    "another window": (zlab(sliding_window=9, dflash_config={"swa_window_size": W}), zlab_window, everything),
    "speculators": (speculators(), from_root, everything),
    "speculators, not causal": (speculators(sliding_window_non_causal=True), from_root_both_ways, everything),
    "muse glimmer": ({**zlab(), "model_type": "muse_glimmer_assistant"}, muse, everything),
}


def random_state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    inner = {"q_proj": HEADS * DIM, "k_proj": GROUPS * DIM, "v_proj": GROUPS * DIM}
    state = {"fc.weight": torch.randn(WIDTH, 2 * WIDTH), "norm.weight": 1 + 0.2 * torch.randn(WIDTH)}
    state["hidden_norm.weight"] = 1 + 0.2 * torch.randn(WIDTH)
    for n in range(2):
        state |= {f"layers.{n}.self_attn.{name}.weight": torch.randn(rows, WIDTH) for name, rows in inner.items()}
        state |= {f"layers.{n}.self_attn.{x}_norm.weight": 1 + 0.2 * torch.randn(DIM) for x in "qk"}
        state[f"layers.{n}.self_attn.o_proj.weight"] = 0.3 * torch.randn(WIDTH, HEADS * DIM)
        state |= {f"layers.{n}.mlp.{name}_proj.weight": 0.3 * torch.randn(24, WIDTH) for name in ("gate", "up")}
        state[f"layers.{n}.mlp.down_proj.weight"] = 0.3 * torch.randn(WIDTH, 24)
        state |= {
            f"layers.{n}.{name}_layernorm.weight": 1 + 0.2 * torch.randn(WIDTH) for name in ("input", "post_attention")
        }
    return state


def with_biases(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same file with a bias for every projection of its layers."""
    projections = {name: rows for name, rows in state.items() if "_proj." in name and name.startswith("layers.")}
    return state | {name.replace("weight", "bias"): 0.3 * torch.randn(len(rows)) for name, rows in projections.items()}


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt() * weight


def turned(x: Tensor, position: Tensor) -> Tensor:
    half = DIM // 2
    angle = position[:, None, None] * 100.0 ** (-torch.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)


def written_out(state: dict[str, Tensor], taps: Tensor, embeds: Tensor, shows: list[Sees]) -> Tensor:
    """Outputs [BLOCK, WIDTH] of a block behind the states [n, 2 * WIDTH], all heads and keys side by side."""
    root = len(taps)
    context = normed(taps @ state["fc.weight"].T, state["hidden_norm.weight"])
    position = torch.arange(root + BLOCK)
    y = embeds
    for n, sees in enumerate(shows):
        one = {name.removeprefix(f"layers.{n}."): value for name, value in state.items()}

        def project(name: str, x: Tensor, weights: dict[str, Tensor] = one) -> Tensor:
            return x @ weights[f"{name}_proj.weight"].T + weights.get(f"{name}_proj.bias", 0)

        a = normed(y, one["input_layernorm.weight"])
        rows = torch.cat([context, a])
        q = project("self_attn.q", a).view(-1, HEADS, DIM)
        k, v = (project(f"self_attn.{x}", rows).view(-1, GROUPS, DIM) for x in "kv")
        q = turned(normed(q, one["self_attn.q_norm.weight"]), position[root:])
        k = turned(normed(k, one["self_attn.k_norm.weight"]), position)
        k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        mask = torch.tensor([[sees(i, j, root) for j in range(root + BLOCK)] for i in range(root, root + BLOCK)])
        scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
        weight = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        y = y + project("self_attn.o", torch.einsum("hqk,khd->qhd", weight, v).flatten(1))
        b = normed(y, one["post_attention_layernorm.weight"])
        gate, up = (project(f"mlp.{name}", b) for name in ("gate", "up"))
        y = y + project("mlp.down", torch.nn.functional.silu(gate) * up)
    return normed(y, state["norm.weight"])


def ours(drafter: DFlash, pieces: list[Tensor], embeds: Tensor) -> Tensor:
    """Outputs [B, BLOCK, WIDTH] behind context that comes in pieces [B, n, 2 * WIDTH]."""
    cache = SlotCache(2, 0)
    rotary, done = drafter.layer.rotary(64, embeds.device, embeds.dtype), 0
    for piece in pieces:
        position = torch.arange(done, done + piece.shape[1])[None]
        for index, layer in enumerate(drafter.layers):
            cache.write(index, *layer.context(drafter.context(piece), rotary[position]))
        cache.advance(piece.shape[1])
        done += piece.shape[1]
    hides = attention_biases(drafter.config, cache, BLOCK, embeds.dtype)
    return drafter(embeds, rotary[None, done : done + BLOCK], cache, hides)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_block_equals_attention_written_out(name: str) -> None:
    config, sliding, full = CONVENTIONS[name]
    state = random_state()
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", state, config)
    taps, embeds = torch.randn(CONTEXT, 2 * WIDTH), torch.randn(BLOCK, WIDTH)
    made = ours(drafter, [taps[None]], embeds[None])[0]
    torch.testing.assert_close(made, written_out(state, taps, embeds, [sliding, full]), atol=2e-5, rtol=1e-4)
    for other in {shows[1] for shows in CONVENTIONS.values()} - {sliding}:
        assert (made - written_out(state, taps, embeds, [other, full])).abs().max() > 1e-3


LAYOUTS = {"z-lab": zlab, "speculators": speculators}


def biased_config(layout: str) -> dict:
    said = dict(attention_bias=True, mlp_bias=True)
    if layout == "z-lab":
        return zlab(**said)
    return speculators(transformer_layer_config={**SIZES, **KINDS, **said})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_biases_are_read_and_added(layout: str) -> None:
    sliding, full = CONVENTIONS[layout][1:]
    state = with_biases(random_state())
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", state, biased_config(layout))
    taps, embeds = torch.randn(CONTEXT, 2 * WIDTH), torch.randn(BLOCK, WIDTH)
    made = ours(drafter, [taps[None]], embeds[None])[0]
    torch.testing.assert_close(made, written_out(state, taps, embeds, [sliding, full]), atol=2e-5, rtol=1e-4)
    for part in ("k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"):  # each of them matters
        less = {name: rows for name, rows in state.items() if not name.endswith(f"{part}.bias")}
        assert (made - written_out(less, taps, embeds, [sliding, full])).abs().max() > 1e-3


def test_biases_that_a_config_names_are_required_unless_its_class_has_none() -> None:
    state = with_biases(random_state())
    with pytest.raises(ValueError, match="missing .*layers.0.self_attn.q_proj.bias"):
        mmspec.vlm.drafter_from_state_dict("dflash", random_state(), biased_config("z-lab"))
    with pytest.raises(ValueError, match="unknown .*layers.0.mlp.down_proj.bias"):
        mmspec.vlm.drafter_from_state_dict("dflash", state, zlab(attention_bias=True))
    without = {name: rows for name, rows in state.items() if not (".mlp." in name and name.endswith("bias"))}
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", without, biased_config("z-lab"))
    assert drafter.config.attention_bias and not drafter.config.mlp_bias


def test_context_that_comes_in_pieces_is_context_that_comes_at_once() -> None:
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", random_state(), zlab())
    taps, embeds = torch.randn(2, CONTEXT, 2 * WIDTH), torch.randn(2, BLOCK, WIDTH)
    whole = ours(drafter, [taps], embeds)
    torch.testing.assert_close(ours(drafter, list(taps.split([1, 6, 4], 1)), embeds), whole, atol=1e-5, rtol=1e-4)
