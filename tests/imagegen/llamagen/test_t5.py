"""The T5 encoder and its tokenizer compute what those of transformers compute, from the files these write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MT5Config, MT5EncoderModel, T5Config, T5EncoderModel, T5ForConditionalGeneration

from mmspec.imagegen.llamagen import t5
from mmspec.imagegen.llamagen.captions import FileTokenizer, read_encoder
from mmspec.imagegen.llamagen.load import t5_from_state_dict
from mmspec.imagegen.llamagen.t5 import T5Config as Config
from mmspec.imagegen.llamagen.t5 import T5Encoder
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


@pytest.mark.parametrize("length", [1, 2, 9, 67])  # 67 is beyond the farthest distance that has a row of its own
@pytest.mark.parametrize("projection", ["relu", "gated-gelu"])
def test_states_are_those_of_transformers(projection: str, length: int) -> None:
    model = theirs(projection)
    ours = t5_from_state_dict(model.state_dict(), model.config.to_dict())
    ids, mask = request(length)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours(ids, mask).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


def test_a_multilingual_encoder_loads_too() -> None:
    torch.manual_seed(4)
    model = MT5EncoderModel(MT5Config(**SIZES, feed_forward_proj="gated-gelu")).eval()
    ours, (ids, mask) = t5_from_state_dict(model.state_dict(), model.config.to_dict()), request(9)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(ours(ids, mask).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_keep_the_dtypes_and_the_precision_of_transformers(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs().to(dtype).save_pretrained(tmp_path)
    model, ours = T5EncoderModel.from_pretrained(tmp_path, dtype="auto").eval(), read_encoder(tmp_path)
    wanted = {name: value.dtype for name, value in model.state_dict().items() if "embed_tokens" not in name}
    assert {name: value.dtype for name, value in ours.state_dict().items()} == wanted
    ids, mask = request(9)
    with torch.no_grad():
        expected, got = model(input_ids=ids, attention_mask=mask)[0], ours(ids, mask)[0]
        exact = model.float()(input_ids=ids, attention_mask=mask)[0]
    assert got.dtype == expected.dtype == dtype
    theirs_off, off = ((seen.float() - exact).abs().mean() for seen in (expected, got))
    assert 0 < off < 1.2 * theirs_off


def test_states_beyond_half_precision_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    model = theirs()
    for block in model.encoder.block:
        block.layer[1].DenseReluDense.wo.weight.data.mul_(3e3)
    ours = t5_from_state_dict(model.state_dict(), model.config.to_dict()).half()
    assert ours(*request(9)).last_hidden_state.isfinite().all()
    monkeypatch.setattr(t5, "_LARGEST", torch.inf)
    assert not ours(*request(9)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("shard", ["50GB", "10KB"])
def test_of_a_whole_t5_in_any_number_of_files_the_encoder_is_read(shard: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = T5ForConditionalGeneration(T5Config(**SIZES, feed_forward_proj="gated-gelu")).eval()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "10KB")
    ids, mask = request(9)
    with torch.no_grad():
        expected = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(read_encoder(tmp_path)(ids, mask).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


def test_an_embedding_under_its_other_name_is_found() -> None:
    model = theirs()
    state = dict(model.state_dict())
    state["encoder.embed_tokens.weight"] = state.pop("shared.weight")
    assert torch.equal(t5_from_state_dict(state, model.config.to_dict()).shared.weight, model.shared.weight)


def test_transformers_reads_a_saved_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = T5Encoder(Config.of({**SIZES, "feed_forward_proj": "gated-gelu"})).eval()
    ours.save_pretrained(tmp_path / "t5")
    model, told = T5EncoderModel.from_pretrained(tmp_path / "t5", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    ids, mask = request(9)
    with torch.no_grad():
        torch.testing.assert_close(
            model(input_ids=ids, attention_mask=mask)[0], ours(ids, mask)[0], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "umt5"}, "expected t5 or mt5, got 'umt5'"),
        ({"feed_forward_proj": "gated-silu"}, "expected one of relu, gated-gelu"),
        ({"num_layers": 2}, "unknown encoder.block.2"),
        ({"num_layers": 4}, "no encoder.block.3"),
        ({"d_ff": 41}, r"of shape \(40, 24\) instead of \(41, 24\)"),
        ({"num_heads": 0}, "num_heads: expected at least 1"),
        ({"d_model": "wide"}, "d_model: expected int, got 'wide'"),
        ({"relative_attention_num_buckets": 2}, "expected 4 or more"),
        ({"relative_attention_max_distance": 3}, "distance above a quarter"),
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
    with pytest.raises(ValueError, match="expected model.safetensors, got none"):
        read_encoder(tmp_path)
    state.pop("encoder.final_layer_norm.weight")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="no encoder.final_layer_norm.weight"):
        read_encoder(tmp_path)


@pytest.mark.parametrize("length", [2, 5, 30])
def test_tokens_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    known = word_tokenizer()
    known.save_pretrained(tmp_path / "one")
    FileTokenizer(tmp_path / "one").save_pretrained(tmp_path / "two")
    how = dict(max_length=length, padding="max_length", padding_side="right", truncation=True, return_tensors="pt")
    texts = ["a red circle", "", "the left , a dog right . a square on the blue circle"]
    expected = known(texts, **how)
    for folder in ("one", "two"):
        rows = FileTokenizer(tmp_path / folder)(texts, **how)
        assert torch.equal(rows["input_ids"], expected["input_ids"])
        assert torch.equal(rows["attention_mask"], expected["attention_mask"])
        assert FileTokenizer(tmp_path / folder).all_special_ids == sorted(known.all_special_ids)
        ids = rows["input_ids"][2].tolist()
        assert FileTokenizer(tmp_path / folder).convert_ids_to_tokens(ids) == known.convert_ids_to_tokens(ids)
    assert type(known).from_pretrained(tmp_path / "two")(texts)["input_ids"] == known(texts)["input_ids"]


def test_a_tokenizer_in_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(ValueError, match="expected tokenizer.json, got none; load an older tokenizer"):
        FileTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json: expected a tokenizer, got"):
        FileTokenizer(tmp_path)
