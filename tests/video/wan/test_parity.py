"""The causal Wan of Self-Forcing: cached passes, clean overwrites, positions and the pass over all blocks at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.video import CausalWan, ChunkCache, wan_from_state_dict
from mmspec.video.wan.transformer import rotary_table, rotate, sinusoid
from tests.parity import case
from tests.video.tiny import counters

CONFIG = {
    "model_type": "t2v", "patch_size": [1, 2, 2], "text_len": 8, "in_dim": 4, "dim": 48, "ffn_dim": 96, "freq_dim": 32,
    "text_dim": 40, "out_dim": 4, "num_heads": 2, "num_layers": 2, "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6,
}  # fmt: skip
TOKENS = 6
# in the order they were run: block, name, source of the latents, time of each frame
PASSES = [
    (0, "noisy", [937.5, 937.5]),
    (0, "clean", [0.0, 0.0]),
    (1, "noisy", [1000.0, 1000.0]),
    (1, "mixed_t", [1000.0, 625.0]),
    (1, "clean", [0.0, 0.0]),
    (2, "noisy", [625.0, 625.0]),
    (2, "clean", [0.0, 0.0]),
]


@pytest.fixture(scope="module")
def given() -> dict[str, Tensor]:
    return case("continuous_video/f1_wan_causal_cache")


@pytest.fixture(scope="module")
def model() -> CausalWan:
    weights = case("continuous_video/f0_wan_causal_tiny_weights")
    return wan_from_state_dict({name.removeprefix("w."): value for name, value in weights.items()}, CONFIG)


def close(got: Tensor, wanted: Tensor) -> None:
    assert torch.allclose(got, wanted, atol=2e-5, rtol=1e-4), (got - wanted).abs().max()


@torch.no_grad()
def test_every_pass_and_its_cache_match_the_published_code(model: CausalWan, given: dict[str, Tensor]) -> None:
    cache, prompt = ChunkCache(), model.read(given["text.context"])
    for block, name, times in PASSES:
        latents = given["clean" if name == "clean" else "noisy"][:, :, 2 * block : 2 * block + 2]
        out = model(latents, torch.tensor([times]), prompt, cache)
        close(out, given[f"b{block}.{name}.out"])
        for layer in range(2):
            for held, which in zip(cache.layer(layer), "kv", strict=True):
                close(held.transpose(1, 2), given[f"b{block}.{name}.{which}{layer}"])
        assert counters(cache, TOKENS) == given[f"b{block}.{name}.counters"].tolist()
        if name == "clean":
            cache.commit()


@torch.no_grad()
def test_all_blocks_in_one_pass_match_the_published_code(model: CausalWan, given: dict[str, Tensor]) -> None:
    out = model(given["clean"], torch.zeros(1, 6), model.read(given["text.context"]), sizes=(2, 2, 2))
    close(out, given["full_masked_t0"])


@torch.no_grad()
def test_one_block_at_the_start_matches_diffusers(model: CausalWan, given: dict[str, Tensor]) -> None:
    out = model(given["noisy"][:, :, :2], torch.full((1, 2), 937.5), model.read(given["text.context"]))
    close(out, given["diffusers.block0"])


@torch.no_grad()
def test_prompts_and_times(model: CausalWan, given: dict[str, Tensor]) -> None:
    close(model.condition_embedder.text_embedder(given["text.context"]), given["text.embedded"])
    keys, values = model.read(given["text.context"][:, :5]).layers[0]  # what is left out is zero and attended to
    close(keys.transpose(1, 2), given["cross.k0"])
    close(values.transpose(1, 2), given["cross.v0"])
    assert torch.allclose(sinusoid(given["time.t"], 32).float(), given["time.sinusoid"], atol=1e-7)
    time, modulation = model.times(given["time.t"][None])
    close(time[0], given["time.emb"])
    close(modulation[0].flatten(1), given["time.proj"])


def test_rotation_starts_at_any_frame(given: dict[str, Tensor]) -> None:
    for start in (0, 2, 5):
        table = rotary_table(24, start, (2, 2, 3), torch.device("cpu"))
        close(rotate(given["rope.in"], table), given[f"rope.out_start{start}"])
    cos, sin = rotary_table(24, 0, (8, 1, 1), torch.device("cpu"))
    close(cos[:, :4].double(), given["rope.freqs_real"][:, :4])
    close(sin[:, :4].double(), given["rope.freqs_imag"][:, :4])
