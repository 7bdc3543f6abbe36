"""Models of transformers load whole or not at all, and ask nobody whether code may run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspec.imagegen import LlamaGenPipeline
from mmspec.io.checkpoints import foreign_weights, load_model, load_part
from mmspec.run.image_models import folder_resources
from tests.evaluate.tiny_images import captioned
from tests.evaluate.tiny_zoo import llava, tiny_zoo
from tests.imagegen.adapters.models import tiny as tiny_model
from tests.imagegen.adapters.processors import processor
from tests.imagegen.llamagen.tiny import CAPTION


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    llava(2, 3).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    state = load_file(file)
    change(state)
    save_file(state, file, metadata={"format": "pt"})


def key(folder: Path, end: str) -> str:
    """The file's name of a tensor."""
    return next(name for name in load_file(folder / "model.safetensors") if name.endswith(end))


def refused(folder: Path, kind: type = hf.AutoModelForImageTextToText, **how: object) -> str:
    with pytest.raises(ValueError, match="expected") as caught:
        load_model(kind, folder, **how)
    message = str(caught.value)
    assert str(folder) in message and "\n" not in message
    return message


def test_a_whole_checkpoint_loads_as_it_is(folder: Path) -> None:
    model = load_model(hf.AutoModelForImageTextToText, folder)
    assert not model.training
    for name, value in llava(2, 3).state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize("end", ["model.norm.weight", "lm_head.weight", "layers.1.mlp.gate_proj.weight"])
def test_a_missing_weight_is_named(folder: Path, end: str) -> None:
    rewrite(folder, lambda state: state.pop(key(folder, end)))
    place = "" if end.startswith("lm") else "model.language_model."
    assert f"got no {place}{end.removeprefix('model.')}, which would be random" in refused(folder)


def test_of_many_missing_weights_the_first_few_are_named(folder: Path) -> None:
    rewrite(folder, lambda state: [state.pop(name) for name in list(state) if "vision_tower" in name])
    line = refused(folder)
    assert line.count("vision_tower") == 4 and " and " in line and "more, which would be random" in line


def test_a_tied_head_is_no_missing_weight(tmp_path: Path) -> None:
    config = hf.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    hf.LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = load_model(hf.AutoModelForCausalLM, tmp_path)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_keys_that_the_class_ignores_are_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(folder, lambda state: state.update({key(folder, "layers.1.mlp.gate_proj.weight") + "9": torch.ones(1)}))
    rewrite(folder, lambda state: state.pop(key(folder, "language_model.model.norm.weight")))
    monkeypatch.setattr(hf.LlavaForConditionalGeneration, "_keys_to_ignore_on_load_missing", {r"norm\.weight"})
    load_model(hf.AutoModelForImageTextToText, folder)


def test_a_weight_of_another_shape_is_named(folder: Path) -> None:
    name = key(folder, "language_model.model.norm.weight")
    rewrite(folder, lambda state: state.update({name: torch.ones(31)}))
    assert "norm.weight of shape (31,) instead of (32,)" in refused(folder)


def test_a_file_with_more_layers_than_its_config_is_another_model(folder: Path) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["num_hidden_layers"] = 1
    config["text_config"].pop("layer_types", None)
    file.write_text(json.dumps(config))
    assert "layers.1." in refused(folder) and "too; use the config" in refused(folder)


def test_a_bias_that_the_config_leaves_out_shows_another_model(folder: Path) -> None:
    name = key(folder, "language_model.model.layers.0.self_attn.q_proj.weight")
    rewrite(folder, lambda state: state.update({name.replace("weight", "bias"): torch.ones(32)}))
    assert "self_attn.q_proj.bias too" in refused(folder)


def test_weights_of_parts_that_the_model_has_not_are_left_alone(folder: Path) -> None:
    rewrite(
        folder, lambda state: state.update({"value_head.weight": torch.ones(3), "model.mtp.norm.weight": torch.ones(3)})
    )
    load_model(hf.AutoModelForImageTextToText, folder)


def test_strangers_are_places_in_shorter_lists_and_biases() -> None:
    model = nn.Module()
    model.layers, model.none = nn.ModuleList([nn.Linear(1, 1, bias=False)]), nn.ModuleList()
    model.head = nn.Linear(1, 1, bias=False)
    found = foreign_weights(
        {
            "layers.1.weight",
            "none.0.weight",
            "extra.0.weight",
            "head.bias",
            "head.scale",
            "norm.weight",
            "layers.0.w.x",
        },
        model,
    )
    assert found == ["head.bias", "layers.1.weight", "none.0.weight"]


def test_pickled_weights_are_refused(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    refused(folder)


@pytest.mark.parametrize("contents", [b"", b"cut", b"[1]", b"{", b'{"model_type": 3}', b'{"model_type": "unheard_of"}'])
def test_a_damaged_config_reports_one_error(folder: Path, contents: bytes) -> None:
    (folder / "config.json").write_bytes(contents)
    with pytest.raises(ValueError, match=str(folder)) as caught:
        load_model(hf.AutoModelForImageTextToText, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 5, 200, 20_000])
def test_a_truncated_file_reports_one_error(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=str(folder)) as caught:
        load_model(hf.AutoModelForImageTextToText, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "num_hidden_layers"])
@pytest.mark.parametrize("size", [10**6, 10**9, 10**40, -8])
def test_a_config_of_absurd_sizes_takes_no_memory(folder: Path, field: str, size: int) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"][field] = size
    config["text_config"].pop("layer_types", None)
    file.write_text(json.dumps(config))
    refused(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    llava(2, 3).save_pretrained(tmp_path, max_shard_size="20KB")
    load_model(hf.AutoModelForImageTextToText, tmp_path)
    (shard, *_) = sorted(tmp_path.glob("model-00002-of-*.safetensors"))
    shard.unlink()
    assert str(shard) in refused(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    assert "index.json: expected a weight_map" in refused(tmp_path)


def test_an_image_model_without_a_weight_is_refused(tmp_path: Path) -> None:
    tiny_model("janus").save_pretrained(tmp_path)
    processor("janus").save_pretrained(tmp_path)
    folder_resources(tmp_path)
    rewrite(tmp_path, lambda state: state.pop(key(tmp_path, "language_model.norm.weight")))
    with pytest.raises(ValueError, match="got no model.language_model.norm.weight, which would be random"):
        folder_resources(tmp_path)


def test_a_caption_encoder_without_a_weight_is_refused(tmp_path: Path) -> None:
    captioned(CAPTION).save_pretrained(tmp_path)
    folder = tmp_path / "text_encoder"
    rewrite(folder, lambda state: state.pop(key(folder, "final_layer_norm.weight")))
    with pytest.raises(ValueError, match="text_encoder: .* got no encoder.final_layer_norm.weight"):
        LlamaGenPipeline.from_pretrained(tmp_path)


def test_a_zoo_model_without_a_weight_is_refused(tmp_path: Path, folder: Path) -> None:
    from mmspec.zoo.files.registry import read

    tiny_zoo()["vlm"][1].save_pretrained(folder)
    rewrite(folder, lambda state: state.pop(key(folder, "language_model.model.norm.weight")))
    for name in ("vlm", "vlm/small"):
        with pytest.raises(ValueError, match="language_model.norm.weight, which would be random"):
            read(name, folder)


class Asking:
    """A class whose loading asks as transformers does for a processor's parts: without the answer given for the whole."""

    @classmethod
    def from_pretrained(cls, source: Path, **how: object) -> None:
        from transformers.dynamic_module_utils import resolve_trust_remote_code

        resolve_trust_remote_code(None, str(source), has_local_code=False, has_remote_code=True)


def test_remote_code_is_refused_without_a_prompt_and_later_loads_are_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    with pytest.raises(ValueError, match="a checkpoint that brings its own code, which is never run"):
        load_part(Asking, tmp_path)
    assert sys.stdin.read() == "y\n" and dynamic_module_utils.TIME_OUT_REMOTE_CODE == before > 0


def test_a_generation_config_matches_its_file(tmp_path: Path) -> None:
    hf.GenerationConfig(eos_token_id=5).save_pretrained(tmp_path)
    found = load_part(hf.GenerationConfig, tmp_path)
    assert found.eos_token_id == 5 and "trust_remote_code" not in found.to_dict()
