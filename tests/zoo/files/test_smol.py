"""The captioner over a fetched text model in its folder: the projector alone, and what its loader refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mmspec
from mmspec.zoo.architectures.smol import ProjectorSize, WindowProjector
from mmspec.zoo.files import registry
from mmspec.zoo.files.sized import load_sized, save_sized
from mmspec.zoo.files.vlm import read_captioner
from tests.zoo import tiny_smol

SIZE = ProjectorSize(text=64, inner=4)  # over the zoo's own tower


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_sized(WindowProjector(SIZE), SIZE, tmp_path / "vlm_smol")
    return tmp_path / "vlm_smol"


def test_a_projector_comes_back_from_its_folder_alone(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    again = load_sized(ProjectorSize, WindowProjector, folder)
    assert again.size == SIZE and all(
        torch.equal(again.state_dict()[name], value.float()) for name, value in stored.items()
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_the_captioner_is_put_together_in_the_precision_of_its_text_model(folder: Path, dtype: torch.dtype) -> None:
    language, tokenizer = tiny_smol.language().to(dtype), tiny_smol.tokenizer()
    model, processor = read_captioner(folder, mmspec.zoo.folder_of("vlm"), (language, tokenizer))
    assert {value.dtype for value in model.parameters()} == {dtype} and not model.training
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.model.language_model is language.model and processor.tokenizer.padding_side == "left"
    assert tokenizer.padding_side == "right"  # of the caller, who may go on with it


def test_parts_that_do_not_fit_are_refused(folder: Path) -> None:
    tower, language = mmspec.zoo.folder_of("vlm"), tiny_smol.language()
    with pytest.raises(ValueError, match="tokenizer: expected"):
        read_captioner(folder, tower, (language, mmspec.zoo.load("vlm")[1].tokenizer))
    save_sized(WindowProjector(ProjectorSize(text=32, inner=4)), ProjectorSize(text=32, inner=4), folder)
    with pytest.raises(ValueError, match="language: expected a width of 32"):
        read_captioner(folder, tower, (language, tiny_smol.tokenizer()))


def test_a_damaged_projector_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="model.safetensors"):
        load_sized(ProjectorSize, WindowProjector, folder)


def test_the_zoo_loads_the_captioner_over_its_text_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"vlm/smol": folder, "vlm": mmspec.zoo.folder_of("vlm"), "smollm2": folder}
    monkeypatch.setattr(registry, "folder_with_weights", places.__getitem__)
    language = (tiny_smol.language(), tiny_smol.tokenizer())
    monkeypatch.setattr("mmspec.zoo.files.vlm.read_text_model", lambda folder, dtype: language)
    model, processor = registry.load("vlm/smol")
    assert model.model.multi_modal_projector.tokens_per_image == 36 and processor.patch_size == 16


def test_the_captioner_is_listed_once_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "WEIGHTS", tmp_path)
    assert "vlm/smol" not in registry.names()
    with pytest.raises(ValueError, match="mmspec zoo build vlm/smol"):
        registry.load("vlm/smol")
    save_sized(WindowProjector(SIZE), SIZE, tmp_path / "vlm_smol")
    assert "vlm/smol" in registry.names()
