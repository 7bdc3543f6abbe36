"""Same weights, same output as diffusers' own model, where it has one."""

from __future__ import annotations

import pytest
import torch

from mmspec.video import wan_from_state_dict
from tests.video.tiny import GRID, SIZES, apart, randomised, text

OWN = {"text_len", "local_attn_size", "sink_size", "gate_value", "deltatime_type"}


@pytest.mark.parametrize("norm", (True, False))
@torch.no_grad()
def test_one_block_at_the_first_frame_equals_the_stock_transformer(norm: bool) -> None:
    from diffusers import WanTransformer3DModel

    fields = {name: value for name, value in SIZES.to_dict().items() if name not in OWN} | {"cross_attn_norm": norm}
    stock = randomised(WanTransformer3DModel(**fields), 3).eval()
    ours = wan_from_state_dict(stock.state_dict(), dict(stock.config))
    assert ours.config.cross_attn_norm == norm
    latents = torch.randn(2, 3, 3, *GRID)
    wanted = stock(latents, torch.tensor([250.0, 625.0]), text(rows=2), return_dict=False)[0]
    times = torch.tensor([[250.0] * 3, [625.0] * 3])
    assert apart(ours(latents, times, ours.read(text(rows=2))), wanted) < 1e-4


@pytest.mark.parametrize("kind", ("r", "t-r"))
@torch.no_grad()
def test_a_flow_map_embeds_both_ends_as_the_stock_embedding(kind: str) -> None:
    from diffusers.models.transformers.transformer_anyflow_far import AnyFlowDualTimestepTextImageEmbeddingCausal

    stock = AnyFlowDualTimestepTextImageEmbeddingCausal(24, 0.25, kind, 16, 144, 10)
    randomised(stock, 5)
    ours = randomised(_flow_map(kind), 0)
    ours.condition_embedder.load_state_dict(stock.state_dict())
    t, r = torch.tensor([[1000.0, 500.0]]), torch.tensor([[500.0, 0.0]])
    time, modulation, *_ = stock(
        t,
        r,
        text(),
        far_cfg={"num_full_frames": 2, "full_token_per_frame": 1, "compressed_token_per_frame": 1},
    )
    got = ours.times(t, r)
    assert apart(got[0], time) < 1e-4 and apart(got[1].flatten(2), modulation) < 1e-4
    assert apart(ours.times(t)[0], time) > 0.01


def _flow_map(kind: str):  # noqa: ANN202
    from mmspec.video import CausalWan, WanConfig

    return CausalWan(WanConfig(**{**SIZES.to_dict(), "gate_value": 0.25, "deltatime_type": kind})).eval()
