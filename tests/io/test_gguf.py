"""GGUF files that are damaged, cut off or of another family end in one sentence, and nothing is written."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec.io.gguf import need_gguf, read_gguf
from mmspec.io.gguf_config import config_of
from mmspec.io.gguf_convert import convert_gguf
from tests.io.tiny_gguf import MIXED, tiny_model, write_gguf

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra `real`")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", kinds=MIXED)


def refused(file: Path) -> str:
    """The sentence that a file is refused with; nothing is left beside it."""
    before = sorted(file.parent.iterdir())
    with pytest.raises(ValueError, match="expected") as caught:
        convert_gguf(file, file.parent / "out")
    sentence = str(caught.value)
    assert file.name in sentence and "\n" not in sentence and sentence.count("expected") == 1
    assert sorted(file.parent.iterdir()) == before
    return sentence


def test_the_table_has_the_shapes_and_types_that_were_written(whole: Path) -> None:
    file = read_gguf(whole)
    state = tiny_model("llama").state_dict()
    tensors = {tensor.name: tensor for tensor in file.tensors}
    embedding = tensors["token_embd.weight"]
    assert embedding.kind == "Q8_0" and embedding.shape == tuple(state["model.embed_tokens.weight"].shape)
    np.testing.assert_allclose(file.dequantize(embedding), state["model.embed_tokens.weight"].numpy(), atol=1e-3)
    assert np.array_equal(file.dequantize(tensors["output_norm.weight"]), state["model.norm.weight"].numpy())
    assert set(file.kinds()) == set(MIXED) and file.metadata["tokenizer.ggml.tokens"][-3:] == [
        "<|s|>",
        "<|e|>",
        "<|p|>",
    ]


@pytest.mark.parametrize("place", range(12))
def test_a_file_that_is_cut_off_anywhere_is_refused(place: int, whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: [0, 3, 4, 12, 23, 24][place] if place < 6 else len(content) * (place - 5) // 7])
    assert ("GGUF" in refused(cut)) and (place < 2 or "cut off" in refused(cut) or "ends at byte" in refused(cut))


def test_the_last_byte_is_missed(whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    size = max(tensor.start + tensor.length for tensor in read_gguf(whole).tensors)
    cut.write_bytes(whole.read_bytes()[: size - 1])
    assert f"ends at byte {size - 1:,}" in refused(cut)


@pytest.mark.parametrize(
    ("start", "content", "sentence"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, b"\x01", "version 1"),
        (4, b"\x00\x00\x00\x03", "cut off or damaged"),
        (8, b"\xff" * 8, "cut off or damaged"),
        (16, b"\xff" * 8, "cut off or damaged"),
        (24, b"\xff" * 8, "cut off"),
        (32, b"\xff\xfe", "'utf-8' codec"),
    ],
    ids=["magic", "version", "byte order", "tensors", "values", "length of a key", "text"],
)
def test_a_damaged_header_is_refused(start: int, content: bytes, sentence: str, whole: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    old = whole.read_bytes()
    damaged.write_bytes(old[:start] + content + old[start + len(content) :])
    assert sentence in refused(damaged)


def test_random_damage_to_the_header_is_a_value_error_or_another_header(whole: Path, tmp_path: Path) -> None:
    damaged, old, draw = tmp_path / "damaged.gguf", whole.read_bytes(), random.Random(0)
    end, failures = min(tensor.start for tensor in read_gguf(whole).tensors), 0
    for _ in range(100):
        content = bytearray(old)
        for _ in range(4):
            content[draw.randrange(end)] = draw.randrange(256)
        damaged.write_bytes(content)
        try:
            config_of(read_gguf(damaged))
        except ValueError as error:
            failures += 1
            assert damaged.name in str(error)
    assert failures > 30


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"keys": {"attention.head_count": None}}, "llama.attention.head_count of type int"),
        ({"keys": {"block_count": "two"}}, "llama.block_count of type int"),
        ({"keys": {"attention.head_count": [4, 4]}}, "llama.attention.head_count of type int"),
        ({"keys": {"attention.head_count_kv": [2, 2]}}, "a list for 2 layers"),
        ({"keys": {"attention.head_count": 8}}, "attn_q.weight of shape (128, 64)"),
        ({"keys": {"attention.head_count": 0}}, "metadata that make a config"),
        ({"keys": {"block_count": 3}}, "got no blk.2."),
        ({"keys": {"block_count": 10**9}}, "config of about"),
        ({"keys": {"vocab_size": 300}}, "token_embd.weight of shape (300, 64)"),
        ({"general": {"tokenizer.ggml.tokens": None}}, "tokenizer.ggml.tokens of type list"),
        ({"general": {"tokenizer.ggml.model": None}}, "tokenizer.ggml.model of type str"),
        ({"general": {"tokenizer.ggml.model": "bert"}}, "tokenizer of type gpt2 or llama, got 'bert'"),
        ({"general": {"tokenizer.ggml.bos_token_id": 10**6}}, "tokenizer.ggml.bos_token_id"),
        ({"general": {"tokenizer.ggml.eos_token_id": 10**6}}, "tokens of a vocabulary"),
        ({"general": {"split.count": 3}}, "one of 3 files"),
        ({"general": {"general.alignment": 24}}, "Invalid alignment"),
        ({"tensors": {"blk.1.ffn_up.weight": None}}, "got no blk.1.ffn_up.weight"),
        ({"tensors": {"blk.1.ffn_up.weight": torch.zeros(95, 64)}}, "blk.1.ffn_up.weight of shape (96, 64)"),
        ({"tensors": {"blk.1.attn_q.bias": torch.zeros(64)}}, "got blk.1.attn_q.bias too"),
        ({"tensors": {"output_norm.weight": torch.full((64,), torch.nan)}}, "NaN or Inf in output_norm.weight"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(str(name) for part in value.values() for name in part),
)
def test_metadata_and_tensors_that_do_not_make_the_model_are_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    assert sentence in refused(write_gguf(tmp_path / "odd.gguf", "llama", **changes))


def test_another_family_is_named_with_those_that_are_read(tmp_path: Path) -> None:
    import gguf

    file = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "one of llama, qwen2, qwen3, gemma2, gemma3, got 'mamba'" in refused(file)


def test_a_type_that_gguf_does_not_dequantise_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama")
    name = b"output_norm.weight"
    content, place = (
        file.read_bytes(),
        file.read_bytes().index(name) + len(name) + 4 + 8,
    )  # dimensions, and their one number
    for number, named in ((24, "output_norm.weight of type I8, which gguf does not dequantise"), (9999, "9999")):
        file.write_bytes(content[:place] + number.to_bytes(4, "little") + content[place + 4 :])
        assert named in refused(file)


def test_an_occupied_folder_is_refused_and_an_empty_folder_filled(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(ValueError, match="expected a new or empty folder"):
        convert_gguf(whole, tmp_path / "taken")
    with pytest.raises(ValueError, match="expected an existing folder"):
        convert_gguf(whole, tmp_path / "no" / "folder")
    (tmp_path / "empty").mkdir()
    convert_gguf(whole, tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "taken"]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(ValueError, match=r"gguf: expected.*mmspec\[real\]"):
        need_gguf()
