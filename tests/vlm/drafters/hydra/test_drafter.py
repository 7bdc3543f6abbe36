"""Hydra: what its heads start as, and the prefix layer's cache."""

from __future__ import annotations

import json

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.checkpoints import load_drafter
from mmspec.vlm.drafters.hydra import Hydra, HydraConfig
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny


def test_new_heads_pass_the_prefix_state_on() -> None:
    hydra = Hydra(HydraConfig(HIDDEN, VOCAB, layers=3))
    for index in range(4):
        for block in hydra.blocks[index]:
            block.linear.bias.data.zero_()
        states, embeds = torch.randn(2, 5, HIDDEN), torch.randn(2, 5, (index + 1) * HIDDEN)
        torch.testing.assert_close(hydra.feature(index, states, embeds), states)


def test_every_block_has_weights_of_its_own() -> None:
    hydra = Hydra(HydraConfig(HIDDEN, VOCAB, layers=4))
    weights = [block.linear.weight for head in hydra.blocks for block in head]
    assert len(weights) == len({weight.data_ptr() for weight in weights}) == 16


def test_one_pass_per_level_plus_a_pass_of_the_prefix_layer() -> None:
    passes = {}
    for name in ("hydra", "hydra_with_prefix_layer"):
        watched = Watched(make(name).with_shape(Chain()))
        out = mmspec.generate(
            tiny("llava"), drafter=watched, max_new_tokens=10, do_sample=False, return_dict=True, **prompt("llava", 1)
        )
        levels = [seen.draft.tree.max_depth for seen in watched.rounds]
        passes[name] = out.stats.drafter_passes - sum(levels), sum(n > 0 for n in levels)
    assert passes["hydra"][0] == 0
    extra, drafts = passes["hydra_with_prefix_layer"]
    assert extra == drafts + 1  # the prompt's, and one before each draft


def test_published_sizes_are_the_defaults_and_come_back(tmp_path) -> None:
    config = HydraConfig(HIDDEN, VOCAB)
    assert (config.heads, config.layers, config.own_head, config.prefix_layer) == (4, 1, True, False)
    with pytest.raises(ValueError, match="positive sizes"):
        HydraConfig(HIDDEN, VOCAB, prefix_layer=True)
    hydra = Hydra(HydraConfig(HIDDEN, VOCAB, layers=4, prefix_layer=True, intermediate_size=48, num_attention_heads=4))
    hydra.save_pretrained(tmp_path)
    again = load_drafter(tmp_path, target=tiny("llava"))
    assert again.config == hydra.config
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in hydra.state_dict().items())
    out = mmspec.generate(tiny("llava"), drafter=again, max_new_tokens=8, do_sample=False, **prompt("llava", 3))
    assert torch.equal(out, tiny("llava").generate(**prompt("llava", 3), max_new_tokens=8, do_sample=False))


def test_a_drafter_saved_without_a_final_norm_has_none(tmp_path) -> None:
    """Fields that came later read what was written before them as it was meant."""
    layer = dict(prefix_layer=True, intermediate_size=48, num_attention_heads=4)
    hydra = Hydra(HydraConfig(HIDDEN, VOCAB, heads=2, **layer))
    hydra.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["final_norm"], written["dropout"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    again = load_drafter(tmp_path)
    assert again.config == hydra.config and again.final_norm is None
    attend, carry, cache = torch.randn(1, 1, HIDDEN), torch.randn(1, 1, HIDDEN), SlotCache(1, 4)
    turn = again.layer.rotary(1, attend.device, attend.dtype)[None]
    made = again(attend, carry, turn, cache, None)
    torch.testing.assert_close(made, again.layer(attend, carry, turn, SlotCache(1, 4), None))


def test_dropout_is_for_training_alone() -> None:
    hydra = Hydra(HydraConfig(HIDDEN, VOCAB, heads=1, layers=2, dropout=0.5))
    states, embeds = torch.randn(1, 3, HIDDEN), torch.randn(1, 3, HIDDEN)

    def logits() -> torch.Tensor:
        return hydra.logits(hydra.feature(0, states, embeds), 1, None)

    assert not torch.equal(logits(), logits())
    hydra.eval()
    assert torch.equal(logits(), logits())


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="final_norm: expected a prefix_layer to norm, got none"):
        HydraConfig(HIDDEN, VOCAB, final_norm=True)
    with pytest.raises(ValueError, match="dropout: expected at least 0 and below 1, got 1"):
        HydraConfig(HIDDEN, VOCAB, dropout=1)
