"""Targets whose layers lie on several devices, or on a disk, give the words of their own `generate`."""

from __future__ import annotations

import copy
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.core.round.pool import KeyValueSlots
from mmspec.vlm import architectures
from mmspec.vlm.admission import take_apart
from mmspec.vlm.conversation import Past
from tests.vlm.drafters.trained import make
from tests.vlm.drafts import Scripted, continuation
from tests.vlm.elsewhere import THERE, Doubled, Elsewhere, move
from tests.vlm.layer_kinds import model_with, ragged
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=12, do_sample=False)
WAYS = (None, "chain", "static", "dynamic")


def split(name: str) -> nn.Module:
    """A tiny model whose layers but the first lie elsewhere."""
    model = copy.deepcopy(model_with(name))
    for layer in model.get_decoder().layers[1:]:
        move(layer)
    return model


def drafter_for(way: str | None, truth: Tensor, length: int) -> Scripted | None:
    return None if way is None else Scripted(continuation(truth, length), way, invalid=True, vocab=61)


def test_the_double_refuses_to_meet_the_cpu() -> None:
    with Doubled():
        there, here = torch.ones(2, 3).to(THERE), torch.ones(3)
        assert isinstance(there, Elsewhere) and there.device == THERE and (there * 2).device == THERE
        assert torch.arange(3, device=there.device).device == THERE and there.new_zeros(2).device == THERE
        assert type(there.to("cpu")) is Tensor and there.to(here).device == here.device
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there + here
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            there[torch.tensor([0])] = 1.0


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("lengths", ((12,), (12, 5, 9, 3)), ids=("1", "4"))
@pytest.mark.parametrize("name", ("LlamaForCausalLM", "Gemma3ForCausalLM", "Qwen3_5ForCausalLM", "JambaForCausalLM"))
def test_layers_on_two_devices_have_pools_of_their_own(name: str, lengths: tuple[int, ...]) -> None:
    inputs = ragged(lengths, seed=4)
    truth = model_with(name).generate(**inputs, **GREEDY)
    model = split(name)
    with Doubled():
        for way in WAYS:
            drafter = drafter_for(way, truth, lengths[0])
            run = mmspec.vlm.start(model, drafter=drafter, **inputs, **GREEDY)
            run.run()
            assert run.target.tokens == continuation(truth, lengths[0]), way
            pools = run.target.cache.groups
            assert {type(pool.keys) for pool in pools} <= {Tensor, Elsewhere}
            assert sum(isinstance(pool.keys, Elsewhere) for pool in pools) > 0
            assert all(pool.full for pool in pools)  # with room for their own device's layers alone
            assert run.target.cache.length.device.type == "cpu"


def test_pools_that_mixed_devices_would_be_found_out() -> None:
    model, inputs = split("LlamaForCausalLM"), ragged((12,), seed=4)

    def alike(pool: KeyValueSlots, key: Tensor, value: Tensor) -> bool:
        return key.shape[:2] == pool.keys.shape[1:3]

    with (
        Doubled(),
        patch.object(KeyValueSlots, "fits", alike),
        patch.object(architectures, "layer_devices", lambda decoder, count: (None,) * count),
        pytest.raises(RuntimeError, match="all tensors on one device"),
    ):
        mmspec.vlm.start(model, **inputs, **GREEDY).run()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, model in {"llava": tiny("llava"), "qwen3_5": model_with("Qwen3_5ForCausalLM")}.items():
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
    return found


def offloaded(kind: type, folder: Path, work: Path) -> nn.Module:
    """The model with the second half of its layers, its final norm and its head on a disk."""
    pytest.importorskip("accelerate", reason="a device map needs accelerate, which the extra 'train' brings")
    whole = kind.from_pretrained(folder)
    layers = [
        name for name, module in whole.named_modules() if isinstance(module, nn.ModuleList) and name.endswith("layers")
    ]
    decoder = next(name for name in layers if "vision" not in name)
    names = {name for name, _ in whole.named_parameters()}
    half, placed = len(whole.get_decoder().layers) // 2, {}
    for name in names:
        if name.startswith(f"{decoder}."):
            number = name[len(decoder) + 1 :].split(".")[0]
            placed[f"{decoder}.{number}"] = "disk" if int(number) >= half else "cpu"
        else:
            module = name.rpartition(".")[0]
            placed[module] = (
                "disk" if "lm_head" in module or module.endswith(f"{decoder.rpartition('.')[0]}.norm") else "cpu"
            )
    return kind.from_pretrained(folder, device_map=placed, offload_folder=work).eval()


@pytest.mark.default_cells("4")
@pytest.mark.parametrize("batch", (1, 4))
def test_a_model_partly_on_a_disk_gives_its_own_words(folders: dict[str, Path], tmp_path: Path, batch: int) -> None:
    model = offloaded(type(tiny("llava")), folders["llava"], tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    inputs = prompt("llava", 2, batch=batch)
    truth = model.generate(**inputs, **GREEDY)
    length = inputs["input_ids"].shape[1]
    for drafter in [drafter_for(way, truth, length) for way in WAYS] + [make("msd"), make("eagle3")]:
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), truth)
    assert any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("lengths", ((12,), (12, 5, 9, 3)), ids=("1", "4"))
def test_recurrent_layers_on_a_disk_take_trees(folders: dict, tmp_path: Path, lengths: tuple[int, ...]) -> None:
    model = offloaded(type(model_with("Qwen3_5ForCausalLM")), folders["qwen3_5"], tmp_path)
    inputs = ragged(lengths, seed=4)
    truth = model.generate(**inputs, **GREEDY)
    for way in WAYS:
        drafter = drafter_for(way, truth, lengths[0])
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), truth), way
    assert take_apart(model).device.type == "cpu"


def test_a_conversation_with_a_model_partly_on_a_disk(folders: dict[str, Path], tmp_path: Path) -> None:
    model, drafter = offloaded(type(tiny("llava")), folders["llava"], tmp_path), make("msd")
    inputs, past = prompt("llava", 2), Past(model)
    for _ in range(2):
        truth = tiny("llava").generate(**inputs, **GREEDY)
        assert torch.equal(mmspec.generate(model, drafter=drafter, past_key_values=past, **inputs, **GREEDY), truth)
        ids = torch.cat([truth, torch.tensor([[11, 12, 13]])], 1)
        inputs = inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
