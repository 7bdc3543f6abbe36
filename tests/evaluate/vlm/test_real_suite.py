"""`mmspec bench vlm --suite real` on a tiny text model: its rows over all kinds, its page, batches and prompts alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.domain import SamplingOverrides, bench_failures
from mmspec.evaluate.report.bench_page import markdown, tables
from mmspec.evaluate.vlm.config import VlmBenchConfig
from mmspec.evaluate.vlm.domain import DOMAIN
from mmspec.evaluate.vlm.measured import WIDTHS, pass_seconds
from mmspec.io.checkpoints import cast_weights
from mmspec.run.vlm_models import VlmResources, open_target, published_resources
from mmspec.run.vlm_requests import VlmPrompt, encode
from tests.evaluate.vlm.tiny_text import save_text_model, text_model, text_tokenizer

KINDS = ("rewriting", "second_turn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def result(folder: Path) -> Iterator[dict]:
    config = VlmBenchConfig(
        suite="real", model=str(folder), task_names=KINDS, prompts=2, new_tokens=6, batches=(1, 2), threads=1
    )
    yield bench(DOMAIN, config)


def row(result: dict, key: str, task: str, batch: int = 1, temperature: float = 0.0) -> dict:
    where = (key, task, batch, temperature)
    (found,) = (row for row in result["rows"] if (row["key"], row["task"], row["batch"], row["temperature"]) == where)
    return found


def test_text_is_that_of_transformers_and_nothing_fails(result: dict) -> None:
    assert bench_failures(DOMAIN, result) == []
    assert row(result, "lookup", "all kinds")["identical"] == "4/4"
    assert row(result, "recycling", "all kinds", batch=2)["identical"] == "2/2"
    assert row(result, "lookup", "all kinds", temperature=1.0)["identical"] is None


def test_rows_over_all_kinds_are_those_of_the_kinds_together(result: dict) -> None:
    for key in ("hf", "plain", "lookup", "recycling", "auto"):
        parts, whole = [row(result, key, kind) for kind in KINDS], row(result, key, "all kinds")
        assert whole["prompts"] == whole["requests"] == 4
        passes = [count for part in parts for count in part["runs"]["passes"]]
        assert sorted(passes)[1] <= whole["target_passes"] <= sorted(passes)[2]
        lengths = [part["accept_length"] for part in parts]
        assert whole["accept_length"] == pytest.approx(sum(lengths) / 2, abs=2e-3)
        low, high = sorted(part["total_speedup_vs_hf"] for part in parts)
        assert low - 2e-3 <= whole["total_speedup_vs_hf"] <= high + 2e-3
    assert row(result, "hf", "all kinds")["speedup_vs_hf"] == 1 == row(result, "plain", "all kinds")["speedup_vs_ar"]


def test_decoding_time_is_separated_from_the_prefill(result: dict) -> None:
    for key in ("hf", "plain", "lookup"):
        runs = row(result, key, "rewriting")["runs"]
        pairs = zip(runs["decode_seconds"], runs["seconds"], strict=True)
        assert all(0 < behind < whole for behind, whole in pairs)
        assert runs["decode_tokens"] == [count - 1 for count in runs["tokens"]]
    assert row(result, "hf", "all kinds")["decode_speedup_vs_hf"] == 1


def test_rows_of_batches_are_their_prompts_alone(result: dict) -> None:
    assert row(result, "plain", "all kinds", batch=2)["alone"] == "4/4"
    assert row(result, "lookup", "rewriting", batch=2)["alone"] == "2/2"
    assert row(result, "hf", "all kinds", batch=2)["alone"] is None


def test_a_row_that_differs_from_its_prompt_alone_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.evaluate.vlm import figures

    monkeypatch.setattr(figures, "_alone", lambda method, timed, prompt, number: (7,) * 3)
    config = VlmBenchConfig(
        suite="real",
        model=str(folder),
        task_names=("chat",),
        prompts=2,
        new_tokens=3,
        batches=(2,),
        temperatures=(0.0,),
        methods=("plain",),
        threads=1,
    )
    found = row(bench(DOMAIN, config), "plain", "chat", batch=2)
    assert found["alone"] == "0/2" and isinstance(found["alone_margin"], float)


def test_the_page_has_a_table_of_kinds_and_the_cost_curve(result: dict) -> None:
    page = DOMAIN.page(result)
    text = markdown(page, result)
    assert "| method | rewriting | second_turn | all kinds |" in text
    ratio = row(result, "lookup", "rewriting")["speedup_vs_hf"]
    assert any(line.startswith("| prompt lookup |") and f"| {ratio:.2f} |" in line for line in text.splitlines())
    assert text.count("## all kinds,") == 4 and "## rewriting," not in text
    assert result["cost_curve"]["rows"] == list(WIDTHS) and result["cost_curve"]["ratio"][0] == 1
    assert any(note.startswith("a pass over so many rows") for note in page.notes)
    assert sum(not isinstance(part, str) for part in tables(page, result)) == 4 + len(page.grids)
    assert json.loads(json.dumps(result, allow_nan=False))["rows"]


def test_a_prompt_that_parts_is_named_with_its_margin(result: dict) -> None:
    parted = [{"prompt": "rewriting 2", "token": 5, "margin": 0.0004}]
    rows = [
        {**row, "parted": parted} if row["key"] == "lookup" and row["batch"] == 1 else row for row in result["rows"]
    ]
    notes = DOMAIN.page({**result, "rows": rows}).notes
    assert any("rewriting 2, batch 1, token 5" in note and "margin 0.0004 (prompt lookup)" in note for note in notes)


def test_most_methods_run_alone_and_greedy_only(folder: Path) -> None:
    saved = (("mine", "some/folder"),)
    config = VlmBenchConfig(suite="real", model=str(folder), saved=saved)
    keys = {(s.batch, s.temperature): [m.key for m in config.serving(s)] for s in config.settings()}
    assert {"mine-chain-2", "mine-chain-4", "mine-tree-8", "mine-tree-16"} <= set(keys[1, 0.0])
    assert "mine-chain-2" not in keys[1, 1.0] and "mine-chain-4" in keys[1, 1.0]
    assert "hf-lookup" in keys[1, 1.0] and "hf-lookup" not in keys[4, 0.0]
    named = VlmBenchConfig(suite="real", model=str(folder), saved=saved, methods=("mine-chain-2",))
    assert all("mine-chain-2" in [m.key for m in named.serving(s)] for s in named.settings())


def test_wrong_wishes_are_refused(folder: Path) -> None:
    for wish, said in (
        (dict(prompts=9), "--prompts: expected 1 to 8"),
        (dict(task_names=("magic",)), "--tasks: expected one of chat"),
    ):
        with pytest.raises(ValueError, match=said):
            VlmBenchConfig(suite="real", model=str(folder), **wish)
    config = VlmBenchConfig(suite="methods", model=str(folder))
    with pytest.raises(ValueError, match="--suite: expected a suite without pictures"):
        config.check(DOMAIN.resources(config))
    with pytest.raises(ValueError, match="--model: expected one of vlm"):
        open_target("no such model", "float32")


def test_text_models_open_with_their_tokenizer(folder: Path) -> None:
    resources = published_resources(str(folder), local=True)
    assert not resources.takes_pictures and resources.tokenizer is resources.processor
    assert isinstance(resources.model, hf.LlamaForCausalLM)


def test_prompts_of_text_models_are_strings_and_batches_padded_on_the_left() -> None:
    tokenizer = text_tokenizer()
    prompts = [VlmPrompt("Hi"), VlmPrompt("Bye", history=(("user", "Hello"), ("assistant", "Yes")))]
    inputs = encode(tokenizer, prompts)
    texts = [
        tokenizer.decode(ids[mask.bool()], skip_special_tokens=True) for ids, mask in zip(*inputs.values(), strict=True)
    ]
    assert texts == ["[user]Hi\n[assistant]", "[user]Hello\n[assistant]Yes\n[user]Bye\n[assistant]"]
    assert inputs["attention_mask"][0, 0] == 0 and inputs["attention_mask"][:, -1].all()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="turns: expected a single turn"):
        encode(tokenizer, prompts)
    assert tokenizer.decode(encode(tokenizer, prompts[:1])["input_ids"][0], skip_special_tokens=True) == "Hi"


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_a_cast_model_is_the_model_loaded_in_that_precision(folder: Path, dtype: torch.dtype) -> None:
    loaded = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    made = cast_weights(hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), dtype)
    ours = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    theirs = {**dict(loaded.named_parameters()), **dict(loaded.named_buffers())}
    assert ours.keys() == theirs.keys() and any(name.endswith("inv_freq") for name in ours)
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name


def test_passes_of_every_width_are_timed_and_nothing_is_committed() -> None:
    inputs = encode(text_tokenizer(), [VlmPrompt("Hello there")])
    seconds = pass_seconds(text_model(), inputs, widths=(1, 3), repeats=2)
    assert {width: len(times) for width, times in seconds.items()} == {1: 2, 3: 2}
    assert all(time > 0 for times in seconds.values() for time in times)


def test_a_drafter_of_the_zoo_has_the_precision_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.evaluate.tiny_zoo import load, use_tiny_zoo

    use_tiny_zoo(monkeypatch)
    import copy

    model, processor = load("vlm")
    monkeypatch.setattr("mmspec.zoo.load", lambda name: copy.deepcopy(load(name)))
    resources = VlmResources(cast_weights(copy.deepcopy(model), torch.bfloat16), processor, "tiny")
    assert next(resources.drafter("eagle").parameters()).dtype == torch.bfloat16


def test_sweeps_answer_the_turns_of_a_conversation_with_a_text_model(folder: Path) -> None:
    resources, setting = DOMAIN.open(str(folder)), DOMAIN.setting(str(folder), 0.0, SamplingOverrides(new_tokens=4))
    (prompt,) = (prompt for prompt in DOMAIN.prompts("smollm2", 9, 0) if prompt.category == "second_turn")
    texts = []
    for decoding in ("ar", "hf", "lookup"):
        run, made = DOMAIN.sampler(DOMAIN.method(str(folder), decoding, ""), resources, setting)(prompt, 0)
        texts.append(made)
        assert run.tokens == 8
    assert texts[0] == texts[1] == texts[2]
