"""What `mmspec supported` says is what the suite tests."""

from __future__ import annotations

from collections import Counter

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT

from mmspec.run import supported as page
from mmspec.run.supported import (
    UNTESTED,
    class_records,
    combination_records,
    drafter_records,
    drafter_rows,
    greedy_table,
    image_model_records,
    image_text_records,
    model_records,
    refused_records,
    rule_records,
)
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from tests.vlm.drafters import test_vision_drafters as trained_tests
from tests.vlm.drafters import trained
from tests.vlm.tiny import tiny


def kinds_of(test: object) -> set[str]:
    """What a test gives its argument `kind`."""
    found: set[str] = set()
    for mark in (one for one in test.pytestmark if one.name == "parametrize"):
        names = [name.strip() for name in mark.args[0].split(",")]
        if "kind" in names:
            found |= {case if len(names) == 1 else case[names.index("kind")] for case in mark.args[1]}
    return found


def test_the_pairs_called_tested_are_tested() -> None:
    classes = {type(tiny(kind)).__name__ for kind in kinds_of(trained_tests.test_greedy_words_are_the_targets_own)}
    made = {trained.make(name).kind for name in trained.DRAFTERS}
    rows = [row for row in drafter_rows() if row.models is not None]
    assert all(row.models == classes for row in rows)
    assert {row.name for row in rows} - {"kangaroo"} <= made  # chains only, tested in a file of its own


def test_every_pair_has_its_distribution_and_its_test() -> None:
    pairs = combination_records()
    assert len(pairs) == len(model_records()) * len(drafter_records())
    assert {(pair["greedy"], pair["sampled"]) for pair in pairs} == {("exact", "exact")}
    assert any(pair["greedy tested by"] == UNTESTED for pair in pairs)
    assert all(pair["greedy tested by"] and pair["sampled tested by"] for pair in pairs)


def test_relaxed_rules_are_never_listed_as_exact() -> None:
    by_shape = {record["drafts"]: record for record in rule_records()}
    assert by_shape["sampled chain"]["exact rules"].split(", ")[:2] == ["token", "block"]
    assert "block" not in by_shape["sampled tree"]["exact rules"]
    assert by_shape["dynamic tree"]["exact rules"] == "match"
    assert all("typical" not in entry["exact rules"] for entry in by_shape.values())


def test_every_trained_kind_is_listed() -> None:
    from mmspec.vlm.drafters.drafter_names import drafter_classes

    shaped = {kind: made for kind, made in drafter_classes().items() if issubclass(made, ShapedDrafter)}
    assert {kind for kind, made in shaped.items() if made.any_target} <= {row.name for row in drafter_rows()}
    assert {kind for kind, made in shaped.items() if not made.any_target} == {"gemma4_assistant"}


def test_every_image_model_is_listed_with_its_published_sampler() -> None:
    samplers = {record["image model"]: (record["guidance"], record["top-k"]) for record in image_model_records()}
    assert samplers["JanusForConditionalGeneration"] == (5.0, 0)
    assert samplers["ChameleonForConditionalGeneration"] == (3.0, 2000)
    assert all(record["tested by"].startswith("random tiny model") for record in image_model_records())


def test_every_class_of_the_table_is_listed_once_as_supported_or_refused() -> None:
    taken, refused = ({record["model class"] for record in records} for records in (class_records(), refused_records()))
    assert not taken & refused and taken | refused == set(greedy_table()["classes"])
    assert {record["model"] for record in model_records()} <= taken
    assert all(record["reason"] for record in refused_records())


def test_every_image_text_class_of_the_installed_transformers_is_named_with_its_status() -> None:
    records = {record["image-text class"]: record for record in image_text_records()}
    assert set(records) == set(IMAGE_TEXT.values())
    counts = Counter(record["status"] for record in records.values())
    assert set(counts) <= {"tested", "same code, untested", "refused"} and all(
        record["reason"] for record in records.values()
    )
    if greedy_table()["transformers"] == transformers.__version__:
        assert counts["tested"] >= 50
        wanted = (  # not Llama 4, which transformers 5.24.0 cannot run without a picture
            "Aria AyaVision Cohere2Vision Exaone4_5_ Gemma3 Gemma3n Gemma4 Glm46V Glm4v GlmOcr Idefics3 InternVL Kimi_K25 "
            "Lfm2Vl Mistral3 Mllama Molmo2 MuseGlimmer PaliGemma Qwen3_5 Qwen3_5Moe Qwen3VL SmolVLM"
        ).split()
        assert {records[f"{name}ForConditionalGeneration"]["status"] for name in wanted} == {"tested"}


def test_a_class_that_the_table_does_not_know_is_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "LlavaForConditionalGeneration": {"inputs": ["text"], "outcomes": {"default": "same"}, "reasons": {}},
        "Gemma3ForConditionalGeneration": {
            "inputs": ["text", "images"],
            "outcomes": {"default": "same", "window": "refused"},
            "reasons": {"window": "w"},
        },
        "BlipForConditionalGeneration": {
            "inputs": [],
            "outcomes": {"default": "refused"},
            "reasons": {"default": "why"},
        },
    }
    monkeypatch.setattr(page, "greedy_table", lambda: {"transformers": "0", "classes": table})
    found = {record["image-text class"]: (record["status"], record["reason"]) for record in image_text_records()}
    assert found["Gemma3ForConditionalGeneration"] == ("tested", "refused: small windows")
    assert found["BlipForConditionalGeneration"] == ("refused", "why")
    assert (
        found["LlavaForConditionalGeneration"][0]
        == found["SmolVLMForConditionalGeneration"][0]
        == "same code, untested"
    )


def test_the_listing_follows_from_the_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "A": {
            "inputs": ["text"],
            "outcomes": {"default": "same", "window": "same+refused"},
            "enable": {"default": "same", "window": "same+refused"},
            "reasons": {"window": "w"},
        },
        "B": {"inputs": [], "outcomes": {"default": "refused", "dynamic": "refused"}, "reasons": {"default": "why"}},
        "C": {"inputs": [], "outcomes": {"default": "unrunnable"}, "reasons": {"default": "KeyError: 1"}},
        "D": {"unbuilt": "ValueError"},
        "E": {"inputs": ["text"], "outcomes": {"default": "same", "dynamic": "differs"}, "reasons": {"dynamic": "x"}},
    }
    monkeypatch.setattr(page, "greedy_table", lambda: {"transformers": "0", "classes": table})
    a, e = class_records()
    assert (a["model class"], a["prompts hold"], a["small windows"], a["dynamic RoPE"]) == ("A", "text", "partly", "-")
    assert (e["model class"], e["dynamic RoPE"]) == ("E", "differs")
    assert (a["by enable"], e["by enable"]) == ("yes", "-")
    reasons = {record["model class"]: record["reason"] for record in refused_records()}
    assert reasons == {
        "B": "why",
        "C": "transformers.generate itself: KeyError: 1",
        "D": "not built tiny: ValueError",
    }
