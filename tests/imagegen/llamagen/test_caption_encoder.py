"""Encoders of captions are read from the files that transformers writes, and damaged files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MT5Config, MT5EncoderModel, T5Config, T5EncoderModel, T5ForConditionalGeneration

from mmspec.imagegen.llamagen.captions import read_encoder, read_tokenizer
from tests.imagegen.llamagen.tiny import word_tokenizer

SIZES = dict(
    vocab_size=37,
    d_model=24,
    d_kv=5,
    d_ff=40,
    num_layers=3,
    num_heads=4,
    relative_attention_num_buckets=12,
    relative_attention_max_distance=21,
    initializer_factor=6.0,
)


def theirs(projection: str = "gated-gelu", **other: object) -> T5EncoderModel:
    torch.manual_seed(4)
    return T5EncoderModel(T5Config(**{**SIZES, "feed_forward_proj": projection, **other})).eval()


def request(length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and a mask of three rows: one whole, one padded on the right, one with holes."""
    torch.manual_seed(seed)
    ids, mask = torch.randint(0, SIZES["vocab_size"], (3, length)), torch.ones(3, length, dtype=torch.long)
    mask[1, length // 2 + 1 :] = 0
    mask[2, 1::3] = 0
    return ids, mask


@pytest.mark.parametrize("shard", ["50GB", "10KB"])
def test_of_a_whole_t5_in_any_number_of_files_the_encoder_is_read(shard: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = T5ForConditionalGeneration(T5Config(**SIZES, feed_forward_proj="gated-gelu")).eval()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "10KB")
    ids, mask = request(9)
    with torch.no_grad():
        expected = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        assert torch.equal(read_encoder(tmp_path)(ids, mask).last_hidden_state, expected)


def test_a_multilingual_encoder_loads_too(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = MT5EncoderModel(MT5Config(**SIZES, feed_forward_proj="gated-gelu")).eval()
    model.save_pretrained(tmp_path)
    ids, mask = request(9)
    with torch.no_grad():
        assert torch.equal(read_encoder(tmp_path)(ids, mask)[0], model(input_ids=ids, attention_mask=mask)[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 2}, "encoder.block.2"),
        ({"num_layers": 4}, "no encoder.block.3"),
        ({"d_ff": 41}, r"of shape \(40, 24\) instead of \(41, 24\)"),
        ({"d_model": "wide"}, "d_model"),
        ({"num_layers": 10**6}, "expected"),
    ],
)
def test_configs_that_do_not_fit_are_refused(fields: dict, message: str, tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    with pytest.raises(ValueError, match=message) as told:
        read_encoder(tmp_path)
    assert str(tmp_path) in str(told.value)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="model.safetensors"):
        read_encoder(tmp_path)
    state.pop("encoder.final_layer_norm.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="no encoder.final_layer_norm.weight"):
        read_encoder(tmp_path)


def test_a_tokenizer_is_read_from_its_folder(tmp_path: Path) -> None:
    known = word_tokenizer()
    known.save_pretrained(tmp_path)
    texts = ["a red circle", "the left , a dog right . a square on the blue circle"]
    assert read_tokenizer(tmp_path)(texts)["input_ids"] == known(texts)["input_ids"]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_tokenizer(tmp_path)
