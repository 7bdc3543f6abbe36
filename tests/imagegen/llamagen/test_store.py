"""Files that are damaged, or something else than their names say, are refused with one sentence that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmspec.imagegen import LlamaGenPipeline
from mmspec.imagegen.components import CONFIG, WEIGHTS, read_weights, write_component
from mmspec.imagegen.llamagen.load import llamagen_from_state_dict, vq_from_state_dict
from mmspec.run.image_models import folder_resources
from tests.imagegen.llamagen.tiny import CLASS, tokenizer_model, transformer


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def corrupt(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def pickled(path: Path) -> None:
    torch.save({"a": torch.ones(3)}, path)


@pytest.mark.parametrize("damage", [cut_off, cut_in_the_header, corrupt, emptied, pickled])
def test_a_damaged_weights_file_is_refused(tmp_path: Path, damage) -> None:
    write_component(tokenizer_model(), tmp_path)
    path = tmp_path / WEIGHTS
    damage(path)
    for read in (read_weights, vq_from_state_dict, llamagen_from_state_dict):
        with pytest.raises(ValueError, match="cut off or a pickle") as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: expected") and "\n" not in str(caught.value)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("text", ["{", "", "[1, 2]", "3", "\xff", "[" * 200_000])
@pytest.mark.parametrize("file", ["transformer/config.json", "vq/config.json", "model_index.json"])
def test_json_that_is_no_object_is_refused(tmp_path: Path, file: str, text: str) -> None:
    LlamaGenPipeline(transformer(CLASS), tokenizer_model()).save_pretrained(tmp_path)
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="expected (a )?JSON") as caught:
        LlamaGenPipeline.from_pretrained(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / file}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_a_model_folder_whose_config_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ValueError, match="expected (a )?JSON") as caught:
        folder_resources(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / CONFIG}: ")


def test_a_folder_without_a_config_is_read_as_llamagen(tmp_path: Path) -> None:
    LlamaGenPipeline(transformer(CLASS)).save_pretrained(tmp_path)
    assert folder_resources(tmp_path).pipeline.model.geometry.rows == 4
