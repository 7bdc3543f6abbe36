"""The target of an exported drafter: what is read of its folder, and of the loaded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from mmspec.vlm.export import Verifier
from tests.vlm.tiny import HIDDEN, VOCAB, tiny


def test_a_folder_and_the_loaded_model_give_the_same_verifier(tmp_path: Path) -> None:
    model = tiny("llava")
    model.save_pretrained(tmp_path)
    read, loaded = Verifier.of(str(tmp_path)), Verifier.of_model(model, "owner/target")
    assert (read.name, loaded.name) == (str(tmp_path), "owner/target")
    assert read.architectures == loaded.architectures == [type(model).__name__]
    assert read.max_position_embeddings == loaded.max_position_embeddings
    assert read.embedding.shape[0] == VOCAB
    assert torch.equal(read.embedding, loaded.embedding) and torch.equal(read.head, loaded.head)
    assert not torch.equal(read.embedding, read.head)


def test_an_embedding_that_is_scaled_is_written_as_the_target_reads_it(tmp_path: Path) -> None:
    config = hf.Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = hf.Gemma3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    embedding = Verifier.of(str(tmp_path)).embedding
    assert torch.equal(embedding, model.get_input_embeddings()(torch.arange(VOCAB)))
    assert not torch.allclose(embedding, model.get_input_embeddings().weight)


def test_a_folder_without_the_needed_fields_is_refused(tmp_path: Path) -> None:
    tiny("llava").save_pretrained(tmp_path)
    file, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(file)
    save_file({name: value for name, value in tensors.items() if "embed_tokens" not in name}, file)
    with pytest.raises(ValueError, match="verifier: expected one tensor named embed_tokens.weight"):
        _ = Verifier.of(str(tmp_path)).embedding
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Elsewhere"]}))
    with pytest.raises(ValueError, match="expected a class of transformers, got 'Elsewhere'"):
        _ = Verifier.of(str(tmp_path)).embedding
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
    with pytest.raises(ValueError, match="names its class under architectures"):
        Verifier.of(str(tmp_path))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    rows = torch.randn(5, 3)
    save_file({"model.embed_tokens.weight": rows}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["A"], "tie_word_embeddings": True}))
    assert torch.equal(Verifier.of(str(tmp_path)).head, rows)
