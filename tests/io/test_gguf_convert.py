"""A converted GGUF file equals transformers' own loading of it, bit for bit, and the model that the file was written from."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from mmspec.io.checkpoints import load_model
from mmspec.io.gguf_convert import convert_gguf
from tests.io.tiny_gguf import MIXED, TEMPLATE, alphabet, tiny_model, vocabulary, write_gguf

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra `real`")
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="transformers' own GGUF loader needs accelerate"
)
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
SAMPLES = ("the cat sat on a mat", " The\n  cat, 1234 sät")
# what the two name differently on purpose: where a config comes from, and how the file was quantised
NAMED_APART = ("_name_or_path", "quantization_config", "transformers_version", "architectures")


def own(folder: Path) -> torch.nn.Module:
    return load_model(AutoModelForCausalLM, folder, dtype="auto")


@needs_accelerate
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_config_and_tokenizer_equal_those_of_transformers_own_loader(family: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", family, kinds=MIXED)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    ours = own(convert_gguf(file, tmp_path / "out"))
    assert type(ours) is type(theirs)
    state, expected = ours.state_dict(), theirs.state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)
    configs = [
        {key: value for key, value in model.config.to_dict().items() if key not in NAMED_APART}
        for model in (ours, theirs)
    ]
    assert configs[0] == configs[1]
    mine = AutoTokenizer.from_pretrained(tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    assert [mine(text).input_ids for text in SAMPLES] == [reference(text).input_ids for text in SAMPLES]
    words = vocabulary(family)["tokens"]
    assert mine.chat_template == TEMPLATE and mine.eos_token == words[ours.config.eos_token_id]
    assert mine.unk_token == ("<unk>" if "<unk>" in words else None)
    turn = mine(f"{mine.bos_token}cat{mine.eos_token}", add_special_tokens=False).input_ids
    assert turn[0] == ours.config.bos_token_id and turn[-1] == ours.config.eos_token_id and len(turn) <= 5
    assert mine.decode(mine(SAMPLES[0]).input_ids, skip_special_tokens=True).strip() == SAMPLES[0]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_floats_becomes_the_model_that_it_was_written_from(family: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_model(family, tied)
    out = convert_gguf(write_gguf(tmp_path / "tiny.gguf", family, model=model), tmp_path / "out")
    state, expected = own(out).state_dict(), model.state_dict()
    assert state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) != tied


def test_a_width_of_heads_that_transformers_table_leaves_out_is_kept(tmp_path: Path) -> None:
    model = tiny_model("qwen3", True, 32)
    made = own(convert_gguf(write_gguf(tmp_path / "tiny.gguf", "qwen3", model=model), tmp_path / "out"))
    assert made.config.head_dim == 32 and torch.equal(made.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_weights_are_written_in_the_dtype_that_was_named(dtype: torch.dtype, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", "llama", kinds=MIXED)
    whole, half = convert_gguf(file, tmp_path / "whole"), convert_gguf(file, tmp_path / "half", dtype=dtype)
    expected = load_file(whole / "model.safetensors")
    written = load_file(half / "model.safetensors")
    assert all(torch.equal(value, expected[name].to(dtype)) for name, value in written.items())
    assert own(half).dtype == dtype


def test_every_token_that_ends_a_turn_ends_generation_and_the_card_says_where_the_file_is_from(tmp_path: Path) -> None:
    end = alphabet().index("z")
    file = write_gguf(tmp_path / "tiny.gguf", "llama", kinds=("Q4_1",), general={"tokenizer.ggml.eot_token_id": end})
    out = convert_gguf(file, tmp_path / "out", source={"package": "tiny"})
    generation = GenerationConfig.from_pretrained(out)
    assert generation.eos_token_id == [own(out).config.eos_token_id, end]
    card = json.loads((out / "card.json").read_text())
    assert card["license"] == "mit" and card["source"]["package"] == "tiny" and len(card["source"]["sha256"]) == 64
    assert card["source"]["tensor_types"] == {"Q4_1": 15, "F32": 5}
    assert card["parameters"] == sum(value.numel() for value in own(out).parameters())


def test_positions_scaled_as_in_llama_3_are_kept(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model = tiny_model("llama")
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 50000.0,
    }
    config = type(model.config)(**{**model.config.to_dict(), "rope_parameters": rope})
    plain = 1 / 50000.0 ** (torch.arange(0, 16, 2) / 16)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    file = write_gguf(tmp_path / "tiny.gguf", "llama", tensors={"rope_freqs.weight": plain / scaled})
    made = own(convert_gguf(file, tmp_path / "out"))
    assert made.config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(made.model.rotary_emb.inv_freq, scaled)
    strange = write_gguf(tmp_path / "other.gguf", "llama", tensors={"rope_freqs.weight": torch.linspace(1, 8, 8)})
    with pytest.raises(ValueError, match="rope_freqs.weight"):
        convert_gguf(strange, tmp_path / "never")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_positions_scaled_linearly_are_kept_and_other_scalings_refused(family: str, tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    made = own(convert_gguf(write_gguf(tmp_path / "tiny.gguf", family, keys=keys), tmp_path / "out"))
    rope = made.config.rope_parameters
    assert rope.get("full_attention", rope)["factor"] == 4.0
    if family == "llama":
        torch.testing.assert_close(made.model.rotary_emb.inv_freq * 4, tiny_model(family).model.rotary_emb.inv_freq)
    else:  # whose layers of sliding attention keep theirs
        assert "factor" not in rope["sliding_attention"]
    with pytest.raises(ValueError, match="'yarn'"):
        convert_gguf(write_gguf(tmp_path / "y.gguf", family, keys={"rope.scaling.type": "yarn"}), tmp_path / "never")
