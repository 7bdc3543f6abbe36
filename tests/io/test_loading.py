"""Modules are filled from files that fit, and nothing is allocated for those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspec.io.loading import load_module, mismatch, sketch


class Small(nn.Module):
    def __init__(self, width: int = 3, rows: int = 2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(rows))
        self.register_buffer("ids", torch.arange(width))
        self.register_buffer("table", torch.arange(width) * 2.0, persistent=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(Small().half().state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewrite(file: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(file)
    change(state)
    save_file(state, file)


def refused(make: Callable[[], nn.Module], file: Path) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        load_module(make, file)
    assert str(caught.value).startswith(f"{file}: ") and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_module_is_loaded_in_float32_and_computes_its_unstored_buffers(file: Path) -> None:
    made, stored = load_module(Small, file), load_file(file)
    assert not made.training and torch.equal(made.table, torch.tensor([0.0, 2.0, 4.0]))
    for name, value in made.state_dict().items():
        assert value.dtype == (torch.int64 if name == "ids" else torch.float32) and torch.equal(
            value, stored[name].to(value.dtype)
        )


def test_mismatched_weights_are_named(file: Path) -> None:
    assert "layers.0.weight of shape (3, 3) instead of (4, 4)" in refused(lambda: Small(4), file)
    assert "got no layers.2.weight, layers.2.bias" in refused(lambda: Small(rows=3), file)
    assert "unknown layers.1.bias, layers.1.weight" in refused(lambda: Small(rows=1), file)
    rewrite(file, lambda state: state.update(ids=torch.ones(3)))
    assert "ids in torch.float32 instead of torch.int64" in refused(Small, file)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_weight_that_is_no_number_is_refused(value: float, everywhere: bool, file: Path) -> None:
    rewrite(file, lambda state: state["layers.1.bias"][0 if everywhere else 1 :].fill_(value))
    assert "expected finite weights, got NaN or Inf in layers.1.bias" in refused(Small, file)


@pytest.mark.parametrize("width", [10**5, 10**6, 10**9, 10**12, 2**62, -1])
def test_sizes_beyond_the_file_take_no_memory(width: int, file: Path) -> None:
    places = []

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            places.append(torch.empty(0).device.type)
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    refused(Wide, file)
    assert places == ["meta"]


def test_a_list_without_end_is_given_up(file: Path) -> None:
    class Normal(nn.Module):
        """Its weights are drawn without gradients, as torch's are."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Embedding(2, 2) for _ in range(10**9))

    began = perf_counter()
    assert "the number in its file, got far more" in refused(Normal, file)
    assert perf_counter() - began < 5 and torch.is_grad_enabled()


def test_a_sketch_leaves_numbers_out_only_where_there_are_none() -> None:
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(4, 3)
            self.own = torch.zeros(9, device="cpu").normal_()
            self.named = nn.init.normal_(torch.zeros(9, device="cpu"))
            self.chained = torch.empty(2, 3).normal_(std=0.5)

    made = sketch(Drawn, 1, "here")
    assert made.own.any() and made.named.any()
    assert made.rows.weight.is_meta and made.rows.weight.shape == (4, 3) and made.rows.weight.requires_grad
    assert made.chained.is_meta and made.chained.shape == (2, 3)


def test_a_sketch_has_no_memory_and_its_maker_may_fail() -> None:
    assert all(value.is_meta for value in sketch(Small, 5, "here").state_dict().values())
    with pytest.raises(ValueError, match="width: wrong"):
        sketch(lambda: (_ for _ in ()).throw(ValueError("width: wrong")), 5, "here")


def test_the_first_few_differences_are_listed_and_the_others_counted() -> None:
    own = {f"a{i}": torch.ones(2) for i in range(6)}
    assert mismatch(own, own) == ""
    assert mismatch(own, {}) == "no a0, a1, a2, a3 and 2 more"
    given = {"a0": torch.ones(3), "b": torch.ones(1), **{f"a{i}": torch.ones(2) for i in range(1, 6)}}
    assert mismatch(own, given) == "unknown b, a0 of shape (3,) instead of (2,)"
