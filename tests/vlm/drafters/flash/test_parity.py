"""FLASH's compression and head equal the public code's on the same weights, read through the loader."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.checkpoints import drafter_from_state_dict
from mmspec.vlm.drafters.flash.flash_drafter import Flash
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIG = dict(hidden_size=64, intermediate_size=176, num_attention_heads=8, num_key_value_heads=8, vocab_size=128, k=5)


def head_weights(prefix: str = "") -> dict[str, Tensor]:
    public = case("vlm/flash_sar_head")
    return {prefix + k.removeprefix("weight."): v for k, v in public.items() if k.startswith("weight.")}


@pytest.mark.parametrize("prefix", ("", "layers."))
def test_the_head_predicts_the_public_blocks(prefix: str) -> None:
    public = case("vlm/flash_sar_head")
    drafter = drafter_from_state_dict("flash", head_weights(prefix), CONFIG)
    x = public["x"]
    attend, _ = drafter.fuse(torch.randn_like(x), x)  # without fc in the file, states pass
    rotary = drafter.layer.rotary(x.shape[1], x.device, x.dtype)[None]
    out = drafter(attend, attend, rotary, SlotCache(1, 11), None)
    block = drafter.layer.expansion(out, drafter.block)
    torch.testing.assert_close(block.unflatten(-1, (5, 64)), public["y"], **CLOSE)


def test_the_training_pass_arranges_blocks_as_the_public_code() -> None:
    public = case("vlm/flash_sar_head")
    drafter = drafter_from_state_dict("flash", head_weights(), CONFIG)
    x = public["x"]
    view = PromptView(torch.randn_like(x), x, torch.zeros(x.shape[:2], dtype=torch.long))
    outputs = drafter.unroll(drafter.read(view), view, 0, depths=5)
    torch.testing.assert_close(torch.cat(outputs, 1), public["rearranged"], **CLOSE)


def test_compressed_rows_and_surrounding_texts_match_the_public_code() -> None:
    public = case("vlm/flash_compression")
    state = head_weights() | {name: public[name] for name in ("A", "fc.weight", "fc.bias")}
    drafter = drafter_from_state_dict("flash", state, CONFIG)
    assert isinstance(drafter, Flash) and drafter.config.latents == 64
    before, visual, after = public["pre_hidden"], public["visual_hidden"], public["post_hidden"]
    hidden = torch.cat([before, visual, after], 1)
    embeds = torch.cat([torch.randn(1, 7 + 576, 64), public["post_embeds"]], 1)
    picture = torch.tensor([[0] * 7 + [1] * 576 + [0] * 10])
    slots = drafter.read(PromptView(embeds, hidden, picture))
    parts = slots.attend.split([7, 64, 10], 1)
    for rows, name in zip(parts, ("pre_rows", "compressed", "post_fused"), strict=True):
        torch.testing.assert_close(rows, public[name], **CLOSE)
    # the text behind the picture, which the public branch cuts off, follows the pooled rows
    assert torch.equal(slots.position[0], torch.arange(81)) and int(slots.next_position) == 81
    assert slots.origin[0].tolist() == [-1] * 71 + list(range(583, 593))


def test_the_autoregressive_drafter_is_read_and_misfits_are_listed() -> None:
    public = case("vlm/eagle2_llama")  # the same layer under the same names
    state = {k.removeprefix("weight."): v for k, v in public.items() if k.startswith("weight.")}
    config = dict(CONFIG, num_attention_heads=4, num_key_value_heads=4, rope_theta=1e6)
    drafter = drafter_from_state_dict("flash", state, config)
    rotary = drafter.layer.rotary(12, torch.device("cpu"), torch.float32)[None]
    fused = drafter.fuse(public["embeds_shifted"], public["target_hidden"])
    torch.testing.assert_close(drafter(*fused, rotary, SlotCache(1, 12), None), public["draft_hidden"], **CLOSE)
    short = head_weights()
    del short["o_proj.bias"]
    with pytest.raises(ValueError, match="missing \\['o_proj.bias'\\], unknown \\['gate'\\]"):
        drafter_from_state_dict("flash", short | {"gate": torch.zeros(1)}, CONFIG)
    with pytest.raises(ValueError, match="ar_proj.2.weight: expected shape"):
        drafter_from_state_dict("flash", head_weights(), CONFIG | {"k": 4})
