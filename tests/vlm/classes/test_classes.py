"""Greedy output of any class of transformers is that of `generate`, or the class is refused; the shipped table says so."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from mmspec.run.supported import greedy_table
from tests.vlm.classes.build import config_of, model_of
from tests.vlm.classes.cells import ENABLED, Reference, compare, outcome, reference
from tests.vlm.classes.pictures import picture_prompt
from tests.vlm.classes.prompts import text_prompt
from tests.vlm.classes.summary import outcomes, summary
from tests.vlm.classes.table import class_names, record
from tests.vlm.classes.variants import SWITCH, WINDOW, variants

SAME = {"same", "near-tie"}
GOOD = SAME | {"refused", "unrunnable"}
SAMPLE = (
    "DeepseekV3ForCausalLM", "DogeForCausalLM", "FalconForCausalLM", "Gemma3ForCausalLM", "GitForCausalLM",
    "GPTNeoForCausalLM", "JambaForCausalLM", "Llama4ForCausalLM", "LlamaForCausalLM", "LlavaForConditionalGeneration",
    "MllamaForConditionalGeneration", "Phi3ForCausalLM", "Qwen2_5_VLForConditionalGeneration",
)  # fmt: skip
table_is_of_this_version = pytest.mark.skipif(
    greedy_table()["transformers"] != transformers.__version__, reason="the shipped table is of another transformers"
)


def words(found: dict) -> set[str]:
    return {text.partition(":")[0] for text in outcomes(found)}


@pytest.mark.default_cells(
    "LlavaForConditionalGeneration",
    "DeepseekV3ForCausalLM",
    "DogeForCausalLM",
    "FalconForCausalLM",
    "GPTNeoForCausalLM",
    "GitForCausalLM",
)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_classes_is_the_same_or_refused(name: str) -> None:
    found = record(name, ("ragged", "rows"))
    assert words(found) <= GOOD, found
    for row in [row for cells in found["variants"].values() if isinstance(cells, dict) for row in cells.values()]:
        if isinstance(row, dict):  # the first use of a class may be through `enable`
            assert (row[ENABLED] in SAME) == (row["lookup"] in SAME), row
    if greedy_table()["transformers"] == transformers.__version__:
        shipped = greedy_table()["classes"][name]["outcomes"]
        for label, cells in found["variants"].items():
            assert words(cells) - {"unrunnable", "near-tie"} <= set(shipped[label].split("+")), (label, cells)


@pytest.mark.slow
@pytest.mark.whole
@table_is_of_this_version
@pytest.mark.parametrize("name", class_names())
def test_every_class_is_as_the_shipped_table_says(name: str) -> None:
    assert summary(record(name)) == greedy_table()["classes"][name]


@table_is_of_this_version
def test_the_shipped_table_holds_every_class_and_nothing_wrong() -> None:
    classes = greedy_table()["classes"]
    assert sorted(classes) == sorted(class_names())
    wrong = {
        name: found
        for name, found in classes.items()
        for text in found.get("outcomes", {}).values()
        if {"differs", "crashes"} & set(text.split("+"))
    }
    unlike = {
        name: (found["enable"], found["outcomes"])
        for name, found in classes.items()
        if any(
            set(text.split("+")) - set(found["outcomes"][label].split("+"))
            for label, text in found.get("enable", {}).items()
        )
    }
    assert not wrong and not unlike
    assert sum("unbuilt" in found for found in classes.values()) <= 3
    assert sum("same" in found.get("outcomes", {}).get("default", "") for found in classes.values()) >= 100


def test_the_variants_change_the_generated_text() -> None:
    made = dict(variants("GPTNeoForCausalLM")) | {
        f"llama-{label}": variant for label, variant in variants("LlamaForCausalLM")
    }
    assert made["window"].window_size < WINDOW and made["llama-dynamic"].max_position_embeddings == SWITCH
    texts = {}
    for label, config in made.items():
        name = "LlamaForCausalLM" if label.startswith("llama") else "GPTNeoForCausalLM"
        texts[label] = reference(model_of(name, config), text_prompt("long")).sequences.tolist()
    assert texts["window"] != texts["default"]
    assert texts["llama-dynamic"] != texts["llama-default"] != texts["llama-longrope"]


@pytest.mark.parametrize("name", ["LlavaForConditionalGeneration", "GitForCausalLM", "MllamaForConditionalGeneration"])
def test_pictures_change_the_generated_text(name: str) -> None:
    model = model_of(name, config_of(name))
    inputs = picture_prompt(name, model, "rows")
    other = inputs | {"pixel_values": -2 * inputs["pixel_values"]}
    assert reference(model, inputs).sequences.tolist() != reference(model, other).sequences.tolist()


def test_a_wrong_model_is_found_out() -> None:
    model = model_of("LlamaForCausalLM", config_of("LlamaForCausalLM"))
    inputs = text_prompt("one")
    truth = reference(model, inputs)
    other = copy.deepcopy(model)
    other.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    for way in ("plain", "chain", "tree", "lookup"):
        assert outcome(model, inputs, way, truth) == "same"
        assert outcome(other, inputs, way, truth).startswith("differs")


def test_only_sentences_of_mmspec_are_refusals() -> None:
    model = model_of("LlamaForCausalLM", config_of("LlamaForCausalLM"))
    truth = reference(model, text_prompt("one"))
    twice = copy.deepcopy(model)
    twice.forward = None
    assert outcome(twice, text_prompt("one"), "plain", truth).startswith("crashes: TypeError")
    model.config._attn_implementation = "flash_attention_2"
    assert outcome(model, text_prompt("one"), "plain", truth).startswith("refused: attn_implementation: expected")


def test_near_ties_are_distinguished_from_differences() -> None:
    logits = torch.tensor([[1.0, 1.0 - 1e-6, 0.5]])
    truth = Reference(torch.tensor([[7, 0]]), (logits,))
    assert compare(torch.tensor([[7, 0]]), truth) == "same"
    assert compare(torch.tensor([[7, 1]]), truth) == "near-tie"
    assert compare(torch.tensor([[7, 2]]), truth) == "differs: row 0 from token 0, logits apart by 5e-01"
    assert compare(torch.tensor([[7, 0, 0]]), truth).startswith("differs: shape")


def test_a_summary_keeps_inputs_outcomes_and_first_reasons() -> None:
    found = {
        "default": {
            "one": {"plain": "same", "tree": "near-tie"},
            "picture": {"plain": "refused: no", "tree": "same"},
            "ragged": {"plain": "same", "enable": "crashes: x"},
        },
        "window": {"one": {"plain": "refused: got logits 71.7 times as far off as rounding"}, "rows": "unrunnable: x"},
        "dynamic": "unrunnable: KeyError: 'y'",
    }
    assert summary({"variants": found}) == {
        "inputs": ["text", "images"],
        "outcomes": {"default": "same+refused", "window": "refused", "dynamic": "unrunnable"},
        "enable": {"default": "crashes", "window": "unrunnable", "dynamic": "unrunnable"},
        "reasons": {"default": "no", "window": "got logits further off than rounding", "dynamic": "KeyError: 'y'"},
    }
    assert summary({"unbuilt": "no"}) == {"unbuilt": "no"}
