"""Folders as others publish them load by their own configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.drafters.mtp import Mtp
from tests.vlm.drafters.dflash.test_attention import SIZES, random_state, speculators, zlab
from tests.vlm.drafters.mtp.test_drafter import published, target
from tests.vlm.tiny import tiny


def written(folder: Path, config: dict, *shards: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    for number, shard in enumerate(shards):
        save_file({name: value.contiguous() for name, value in shard.items()}, folder / f"model-{number}.safetensors")
    return folder


@pytest.mark.parametrize(
    "config",
    (zlab(architectures=["DFlashDraftModel"]), speculators(speculators_model_type="dflash")),
    ids=("z-lab", "speculators"),
)
def test_a_dflash_folder_in_two_shards(config: dict, tmp_path: Path) -> None:
    state = random_state()
    first = {name: state[name] for name in list(state)[:7]}
    rest = {name: value for name, value in state.items() if name not in first}
    found = mmspec.vlm.load_drafter(written(tmp_path, config, first, rest))
    assert isinstance(found, DFlash) and found.config.taps == (0, 1)
    found.save_pretrained(tmp_path / "ours")
    again = mmspec.vlm.load_drafter(tmp_path / "ours")
    assert again.config == found.config and torch.equal(again.fc.weight, found.fc.weight)


@pytest.mark.parametrize("name", ("qwen3_next", "deepseek_v3"))
def test_a_targets_own_checkpoint_gives_its_mtp_layer(name: str, tmp_path: Path) -> None:
    model, state = target(name), published(name)
    own = {key: value for key, value in model.state_dict().items() if key not in state}
    written(tmp_path, {"architectures": [type(model).__name__]}, own, state)
    assert isinstance(mmspec.vlm.load_drafter(tmp_path, target=model), Mtp)


def test_a_checkpoint_without_the_mtp_layer_is_refused(tmp_path: Path) -> None:
    model = target("qwen3_5")
    written(tmp_path, {"architectures": [type(model).__name__]}, {"lm_head.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="kind: expected a config or tensors that show it"):
        mmspec.vlm.load_drafter(tmp_path, target=model)
    with pytest.raises(ValueError, match="expected the checkpoint's MTP layer.*got none") as caught:
        mmspec.vlm.load_drafter(tmp_path, target=model, kind="mtp")
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


_FITS = dict(hidden_size=32, intermediate_size=8, num_attention_heads=4, vocab_size=101, taps=(0, 1), mask_token_id=3)


@pytest.mark.parametrize(
    "changed, message",
    (
        (dict(hidden_size=16), "expected hidden_size 32 as in the target, got 16"),
        (dict(vocab_size=64), "expected vocab_size 101 as in the target, got 64"),
        (dict(target_hidden_size=64), "expected target_hidden_size 32 as in the target, got 64"),
        (dict(taps=(0, 2)), "taps: expected layers 0 to 1 of the target, got 2"),
    ),
)
def test_a_drafter_of_another_target_is_refused_when_it_is_loaded(changed: dict, message: str, tmp_path: Path) -> None:
    DFlash(BlockDrafterConfig(**_FITS | changed)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.vlm.load_drafter(tmp_path, target=tiny("llama"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config, message",
    (
        (zlab(), f"expected hidden_size 32 as in the target, got {SIZES['hidden_size']}"),
        (zlab(num_target_layers=36), "num_target_layers: expected 2 as in the target, got 36"),
        (zlab(dflash_config={"mask_token_id": 20}), "mask_token_id: expected a token below vocab_size 20, got 20"),
    ),
)
def test_a_published_folder_of_another_target_is_refused(config: dict, message: str, tmp_path: Path) -> None:
    written(tmp_path, config | {"architectures": ["DFlashDraftModel"]}, random_state())
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.vlm.load_drafter(tmp_path, target=tiny("llama"))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
