"""The figures of a report are those of the loaded model: memory, drafters, pictures and the comparison."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.check import comparison as compared
from mmspec.check.drafters import drafter_fits
from mmspec.check.examine import check
from mmspec.check.memory import memory_of
from mmspec.check.skeleton import sketch_model
from mmspec.check.source import find_model
from mmspec.check.text import report_lines
from mmspec.check.trials import _same_answer
from mmspec.run import vlm_runs
from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.memory_needs import in_units
from tests.check.folders import of_class
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.tiny import tiny

_CLASSES = (
    "Qwen3_5ForConditionalGeneration",
    "DeepseekV3ForCausalLM",
    "Gemma3ForCausalLM",
    "Lfm2ForCausalLM",
    "GptOssForCausalLM",
    "OPTForCausalLM",
)


def kept(model: torch.nn.Module, tokens: int) -> tuple[int, int]:
    """Bytes of keys and values, and of states, that transformers' own cache holds behind a prompt of so many tokens."""
    ids = torch.arange(5, 5 + tokens)[None]
    layers = model(input_ids=ids, use_cache=True).past_key_values.layers
    slots = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    states = [
        value
        for layer in layers
        for name in ("conv_states", "recurrent_states")
        for value in (getattr(layer, name, None) or {}).values()
    ]
    return tuple(sum(one.nbytes for one in some if torch.is_tensor(one)) for some in (slots, states))


@pytest.mark.parametrize("name", ("llava", "qwen3_vl", *_CLASSES))
@torch.no_grad()
def test_memory_is_that_of_the_loaded_model(name: str) -> None:
    is_tiny = name in ("llava", "qwen3_vl")
    model = tiny(name) if is_tiny else model_of(name, config_of(name))
    found = memory_of(sketch_model(model.config, name), torch.float32)
    (short, states), (long, after) = kept(model, 4), kept(model, 12)
    assert found.weights == sum(parameter.nbytes for parameter in model.parameters())
    assert (found.per_token, found.per_row) == ((long - short) / 8, states) and states == after
    assert found.of_request(10) == 10 * found.per_token + states


@pytest.mark.parametrize("name", ("llama", "qwen3_vl", "DbrxForCausalLM"))
@torch.no_grad()
def test_a_class_that_gives_no_cache_without_weights_is_counted_by_its_heads(name: str, monkeypatch) -> None:
    model = tiny(name) if name.islower() else model_of(name, config_of(name))
    monkeypatch.setattr("mmspec.check.memory._cache_layers", lambda *_: None)
    found = memory_of(sketch_model(model.config, name), torch.float32)
    assert found.per_token == (kept(model, 12)[0] - kept(model, 4)[0]) / 8 and "that of its heads" in found.note


def test_half_precision_halves_weights_and_keys() -> None:
    skeleton = sketch_model(tiny("llama").config, "llama")
    whole, half = memory_of(skeleton, torch.float32), memory_of(skeleton, torch.bfloat16)
    assert (whole.weights, whole.per_token) == (2 * half.weights, 2 * half.per_token)


def test_drafter_sizes_match_new_drafters(tmp_path: Path) -> None:
    model = tiny("llava")
    model.config.save_pretrained(tmp_path)
    parts = sketch_model(model.config, "llava").parts
    fits = {fit.name: fit for fit in drafter_fits(parts, find_model(str(tmp_path)))}
    for name, kind in (("eagle", "eagle2"), ("eagle3", "eagle3"), ("dspark", "dspark"), ("hydra", "hydra")):
        made = new_drafter(kind, model)
        assert (
            fits[name].parameters == sum(parameter.numel() for parameter in made.parameters()) and not fits[name].here
        )
    assert fits["lookup"].here and fits["lookup"].text == "lookup"


def test_the_checkpoints_own_mtp_layer_is_here(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = of_class("Qwen3ForCausalLM")(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.zeros(32, 64)}, file, metadata={"format": "pt"})
    parts = sketch_model(config_of("Qwen3ForCausalLM"), "qwen3").parts
    found = next(fit for fit in drafter_fits(parts, find_model(folder)) if fit.name == "mtp")
    assert found.here and found.parameters == 32 * 64 and found.text == f"mtp@{folder}"


def test_drafts_that_change_the_answer_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison does not believe the rule: another token of a drafted answer is found."""
    real = vlm_runs.generate

    def wrong(model: object, *, drafter: object, **settings: object) -> object:
        found = real(model, drafter=drafter, **settings)
        if drafter is None:
            return found
        sequences = found.sequences.clone()
        sequences[0, -3] += 1
        return replace(found, sequences=sequences)

    monkeypatch.setattr(vlm_runs, "generate", wrong)
    tiny("llama").save_pretrained(tmp_path)
    report = check(str(tmp_path), tokens=8)
    assert report.comparison.first_difference == 6 and not report.to_dict()["comparison"]["identical"]
    assert any("differs from token 6 of 8, which is a defect" in line for line in report_lines(report))
    assert report.supported and not report.is_sound
    report.memory = replace(report.memory, dtype="bfloat16")
    assert report.is_sound and "strict=True keeps the bits" in " ".join(" ".join(report_lines(report)).split())


def test_a_request_that_is_refused_leaves_the_rest_of_the_report(tmp_path: Path) -> None:
    model = copy.deepcopy(tiny("llama"))
    model.generation_config.update(return_dict_in_generate=True, output_hidden_states=True)
    model.save_pretrained(tmp_path)
    report = check(str(tmp_path))
    assert (
        report.comparison is None
        and "output_hidden_states: expected False" in report.notes[-1]
        and report.next_commands
    )
    assert report.supported and not next(feature for feature in report.features if feature.name == "sessions").holds


def test_the_comparison_counts_its_passes(tmp_path: Path) -> None:
    model = tiny("llama")
    ids = torch.arange(5, 17)[None].repeat(1, 2)
    found = compared.compare(model, {"input_ids": ids}, "24 tokens", mmspec.drafters.PromptLookup(), 12)
    assert found.identical and found.tokens == found.plain_passes == 12 and found.drafted_passes <= 12
    assert found.drafter == "prompt_lookup"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (16.4e9, "16.4 GB"), (147456, "147 kB")]
)
def test_bytes_for_people(count: float, shown: str) -> None:
    assert in_units(count) == shown


@pytest.mark.parametrize(("gap", "same"), [(0.001, True), (2.0, False)], ids=("tie", "other answer"))
def test_a_second_turn_may_differ_at_a_tie_alone(gap: float, same: bool) -> None:
    row = torch.tensor([[3.0, 3.0 - gap, -2.0, -5.0]])
    fresh, second = torch.tensor([[7, 2, 0, 1]]), torch.tensor([[7, 2, 1, 3]])
    assert _same_answer(second, fresh, (row, row)) is same and _same_answer(fresh, fresh, (row, row))
    assert not _same_answer(fresh[:, :-1], fresh, (row, row))
