"""What training unrolls is what drafting computes, and what the published layer computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from mmspec.imagegen.eagle.loading import drafter_from_state_dict
from mmspec.imagegen.eagle.training import EagleLoss, teacher_pass, unrolled_states
from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.grid_rope import cell_rotary
from mmspec.imagegen.pipeline import ImagePipeline
from tests.imagegen.eagle.small import CHAIN, drafter_for
from tests.imagegen.eagle.test_published import random_state
from tests.imagegen.tiny import TinyModel, generate

LABELS = [0, 1, 2]


@torch.no_grad()
def test_drafting_matches_the_unrolled_training_pass() -> None:
    model = TinyModel()
    drafter = drafter_for(model).with_shape(CHAIN)
    settings = dict(guidance_scale=2.0, temperature=0)
    values = generate(model, LABELS, drafter, **settings).tokens
    teacher_batch = teacher_pass(model, torch.tensor(LABELS), values, paired=True)
    wanted = unrolled_states(drafter, model, teacher_batch, EagleLoss(depths=2, noise=0), torch.Generator())
    run = ImagePipeline(model).start(LABELS, decoding=drafter, **settings)
    rows = torch.arange(3)
    for _ in range(6):
        run.step()
        state, last = run.state, run.target.last
        if not run.target.left > 2 or len(state.pending_features) == 0:
            break
        state.catch_up()
        assert torch.allclose(state.root, sides(wanted[0], rows, last), atol=1e-4)
        lengths = list(state.cache.lengths), state.cache.length
        out = state.expand(values.gather(1, last[:, None] + 1), state.root[:, None], None, 0, 1)[:, 0]
        state.cache.lengths, state.cache.length = lengths
        assert torch.allclose(out, sides(wanted[1], rows, last + 1), atol=1e-4)


def sides(rows: Tensor, row: Tensor, place: Tensor) -> Tensor:
    cond, uncond = rows.chunk(2)
    return torch.cat([cond[row, place], uncond[row, place]], -1)


@pytest.mark.parametrize("cell", [(0, 0), (1, 2), (2, 1)])
def test_rotary_rows_are_the_cells_and_zero_elsewhere(cell: tuple[int, int]) -> None:
    geometry = Geometry(((3, 3),), tail=(9,))
    table = cell_rotary(geometry, 8, 100.0, 20, torch.device("cpu"))
    assert table.shape == (30, 2, 8) and not table[9:].any()
    row, column = cell
    angle = torch.tensor([row * 1.0, row * 0.1, column * 1.0, column * 0.1])
    found = table[3 * row + column]
    assert torch.allclose(found[0], angle.cos().repeat(2)) and torch.allclose(found[1, 4:], angle.sin())


def test_time_turns_the_first_pairs_of_a_video() -> None:
    geometry = Geometry(((2, 2),), frames=3)
    table = cell_rotary(geometry, 8, 100.0, 1, torch.device("cpu"), time_pairs=2)
    angle = torch.tensor([2 * 1.0, 2 * 0.1, 1.0, 0.0])  # frame 2, row 1, column 0
    assert torch.allclose(table[10, 0], angle.cos().repeat(2)) and torch.allclose(table[10, 1, 4:], angle.sin())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_heads_are_turned_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    state, config = random_state()
    drafter = drafter_from_state_dict(state, config).to(dtype)
    attend = torch.randn(1, 24 * 24, 32, dtype=dtype)
    still, turns = torch.zeros(24 * 24, 2, 8), drafter.rotary(Geometry.square(24), 0)
    still[:, 0] = 1  # turns by nothing
    own = [x.double() for x in drafter.layer.heads(attend, still[None].to(dtype))[:2]]
    cells = torch.tensor([(r, c) for r in range(24) for c in range(24)]).double()
    angle = (cells[..., None] * 100.0 ** -torch.arange(2).double()).flatten(1)
    for plain, turned in zip(own, drafter.layer.heads(attend, turns[None])[:2], strict=True):
        wanted = torch.complex(*plain.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
        wanted = torch.cat([wanted.real, wanted.imag], -1)
        assert turned.dtype == dtype
        # half a unit in the last place: what one rounding costs
        torch.testing.assert_close(turned.double(), wanted, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=2e-6)


@torch.no_grad()
def test_the_published_layer_puts_out_the_same() -> None:
    state, config = random_state()
    drafter = drafter_from_state_dict(state, config)
    hidden, value = torch.randn(2, 9, 32), torch.randint(0, 16, (2, 9))
    got = drafter.fuse(torch.nn.functional.embedding(value, state["embed_tokens.weight"]), hidden)
    turned = drafter.rotary(Geometry.square(3), 0)[None]
    out = drafter.layer.unroll(got, got, turned, 0, 1, None)[0]
    assert torch.allclose(out, published_layer(state, hidden, value), atol=1e-5)


def published_layer(state: dict[str, Tensor], hidden: Tensor, value: Tensor, heads: int = 4, side: int = 3) -> Tensor:
    """One causal pass with adjacent pairs, written from the description alone."""
    layer = {name.removeprefix("layers.0."): weight for name, weight in state.items()}
    x = linear(torch.cat([state["embed_tokens.weight"][value], hidden], -1), state["fc.weight"], state["fc.bias"])
    dim = x.shape[-1] // heads
    base = 10000.0 ** (-torch.arange(0, dim // 2, 2) / (dim // 2))
    cells = torch.tensor([(r, c) for r in range(side) for c in range(side)]).float()
    angle = (cells[..., None] * base).flatten(1)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]

    def split(name: str) -> Tensor:
        return linear(x, layer[f"self_attn.{name}_proj.weight"]).unflatten(-1, (heads, dim))

    def turned(y: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    q, k, v = (y.transpose(1, 2) for y in (turned(split("q")), turned(split("k")), split("v")))
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    weight = (q @ k.transpose(-1, -2) / dim**0.5).masked_fill(~causal, -torch.inf).softmax(-1)
    x = x + linear((weight @ v).transpose(1, 2).flatten(2), layer["self_attn.o_proj.weight"])
    normed = rms_norm(x, x.shape[-1:], layer["post_attention_layernorm.weight"], 1e-6)
    gate = silu(linear(normed, layer["mlp.gate_proj.weight"]))
    return x + linear(gate * linear(normed, layer["mlp.up_proj.weight"]), layer["mlp.down_proj.weight"])
