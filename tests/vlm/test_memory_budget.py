"""The memory of a request: estimates against the allocator, and drafts that fit a budget."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import mmspec
from mmspec.check.examine import check
from mmspec.check.memory import memory_of
from mmspec.check.skeleton import sketch_model
from mmspec.core.drafting.shapes import Chain, DynamicTree, Shape, StaticTree, likeliest_tree, nodes_of
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters import SmallModel
from mmspec.vlm.memory_budget import (
    RequestMemory,
    RequestShape,
    budget_sentence,
    bytes_of,
    cut_to,
    request_memory,
    shape_within,
)
from mmspec.vlm.memory_needs import MemoryNeeds, needs_of
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import EVAL_SEEDS, sample_scene
from tests.vlm.drafters.watched import noisy
from tests.vlm.tiny import tiny

TREE = StaticTree(likeliest_tree(48, 6, (0.6, 0.2, 0.1)))
SHAPES = {"plain": None, "chain": Chain(FixedLength(5)), "dynamic": DynamicTree(24, 5, 4), "static": TREE}


@cache
def sized(name: str) -> tuple[Parts, MemoryNeeds]:
    """The parts of a model without weights, and the memory of its weights and slots."""
    model = mmspec.zoo.load("vlm")[0] if name == "zoo" else tiny(name)
    skeleton = sketch_model(model.config, name)
    return skeleton.parts, memory_of(skeleton, torch.float32)


def of(shape: Shape | None, request: RequestShape, drafter: object = None) -> RequestMemory:
    return request_memory(*sized("zoo"), shape, request, drafter)


def peak_of_rounds(request: object, rounds: int) -> int:
    """The most bytes that torch's CPU allocator holds after the prefill, beyond those from before the request."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        running = request()
        with torch.profiler.record_function("rounds"):
            for _ in range(rounds):
                running.step()
    events = sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    began = next(event.start_ns() for event in events if event.name() == "rounds")
    live = peak = 0
    for event in events:
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live) if event.start_ns() > began else 0
    return peak


def measured(name: str, rows: int, new: int, greedy: bool, rounds: int = 4, **more: int) -> tuple[int, int]:
    """The measured peak of a caption's rounds, and the estimate; `more` are further options of the request."""
    model, processor = mmspec.zoo.load("vlm")
    text = "USER: <image>\nDescribe this picture in detail. ASSISTANT:"
    pictures = [render(sample_scene(EVAL_SEEDS[0]))] * rows
    inputs = processor(images=pictures, text=[text] * rows, return_tensors="pt")
    drafter = None if name == "plain" else mmspec.zoo.load("vlm/eagle").with_shape(SHAPES[name])
    options = dict(
        do_sample=not greedy, max_new_tokens=new, seed=0, **more, **({} if greedy else dict(temperature=1.0))
    )

    def request() -> object:
        running = mmspec.vlm.start(model, drafter=drafter, **options, **inputs)
        running.step()
        return running

    request().step()  # tables that all requests share are made once
    sizes = RequestShape(inputs["input_ids"].shape[1], new, rows, greedy, model.config.image_seq_length)
    return peak_of_rounds(request, rounds), of(SHAPES[name], sizes, drafter).total


@pytest.mark.parametrize(
    ("name", "rows", "new", "greedy"),
    [
        ("static", 1, 60, False),
        *(
            pytest.param(name, rows, new, greedy, marks=pytest.mark.whole)
            for name in SHAPES
            for rows in (1, 4)
            for new in (60, 200)
            for greedy in (True, False)
        ),
    ],
)
def test_the_estimate_is_within_5_percent_of_the_allocated_peak(name: str, rows: int, new: int, greedy: bool) -> None:
    peak, estimate = measured(name, rows, new, greedy)
    assert estimate == pytest.approx(peak, rel=0.05), f"measured {peak}, estimated {estimate}"


@pytest.mark.whole
def test_slots_that_double_are_counted_while_both_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.vlm.target._ROOM", 8)
    monkeypatch.setattr("mmspec.vlm.memory_budget._ROOM", 8)
    peak, estimate = measured("plain", 1, 100, True, rounds=90, min_new_tokens=100)
    assert estimate == pytest.approx(peak, rel=0.05)
    assert of(None, RequestShape(157, 100)).copied > 0 == of(None, RequestShape(157, 8)).copied


def test_larger_requests_take_more() -> None:
    request = RequestShape(150, 60)
    totals = [of(Chain(FixedLength(n)), request).total for n in (1, 8, 32, 63)]
    assert totals == sorted(totals) and of(None, request).total < totals[0]
    assert of(TREE, RequestShape(150, 60, greedy=False)).scores > of(TREE, request).scores
    assert of(None, RequestShape(150, 60, rows=4)).cache == 4 * of(None, request).cache


@pytest.mark.parametrize("name", ("chain", "dynamic", "static"))
def test_the_largest_draft_that_fits_is_found(name: str) -> None:
    request, (parts, needs) = RequestShape(150, 60, rows=4, greedy=False), sized("zoo")
    shape, most = SHAPES[name], of(SHAPES[name], request).total + needs.weights
    assert shape_within(parts, needs, shape, request, most) is shape
    tight = (of(None, request).total + of(shape, request).total) // 2 + needs.weights
    fitted = shape_within(parts, needs, shape, request, tight)
    drafted = nodes_of(fitted) - 1
    assert 0 < drafted < nodes_of(shape) - 1
    assert (
        of(fitted, request).total + needs.weights
        <= tight
        < of(cut_to(shape, drafted + 1), request).total + needs.weights
    )
    assert shape_within(parts, needs, shape, request, of(None, request).total + needs.weights) is None


def test_a_smaller_draft_is_a_part_of_the_draft() -> None:
    assert cut_to(TREE, 5).parents == TREE.parents[:6] and cut_to(SHAPES["chain"], 3).longest == 3
    for drafted in range(1, 30):
        assert nodes_of(cut_to(SHAPES["dynamic"], drafted)) <= max(drafted, 1) + 1


def test_a_budget_without_room_is_refused_in_one_sentence() -> None:
    parts, needs = sized("zoo")
    with pytest.raises(
        ValueError, match="memory: expected at least .* MB for the weights and 2 x 210 tokens, got 30 MB; use"
    ):
        shape_within(parts, needs, TREE, RequestShape(150, 60, rows=2), 30_000_000)
    with pytest.raises(ValueError, match="expected a trained drafter or none, got a model of its own"):
        of(TREE, RequestShape(150, 60), SmallModel(noisy("llama")))


def test_a_report_names_the_drafts_of_a_budget(tmp_path) -> None:
    model = tiny("llama")
    model.config.save_pretrained(tmp_path)
    report = check(str(tmp_path), memory="500MB", row=64, load=False)
    assert "500 MB holds the weights, a row of 64 tokens, and drafts of 256 or more tokens in greedy" in " ".join(
        report.notes
    )
    parts, needs = sized("llama")
    least = needs.weights + request_memory(parts, needs, None, RequestShape(32, 32, greedy=False), None).total
    assert "and none in sampled requests" in budget_sentence(parts, needs, 64, least)
    with pytest.raises(ValueError, match="memory: expected at least .* for the weights and 1 x 64 tokens, got 1 kB"):
        check(str(tmp_path), memory="1 kB", row=64, load=False)


def test_sizes_are_read_from_text() -> None:
    assert [bytes_of(text) for text in ("8GB", "1.5 mb", "20 kB")] == [8_000_000_000, 1_500_000, 20_000]
    for wrong in ("8", "GB", "0GB", "-1GB", "3 bits"):
        with pytest.raises(ValueError, match="memory: expected a size such as 8GB or 500MB, got"):
            bytes_of(wrong)


def caption(rows: int = 1) -> dict:
    processor = mmspec.zoo.load("vlm")[1]
    text = "USER: <image>\nDescribe this picture in detail. ASSISTANT:"
    pictures = [render(sample_scene(EVAL_SEEDS[0]))] * rows
    return dict(processor(images=pictures, text=[text] * rows, return_tensors="pt"))


def test_a_loaded_model_has_the_needs_of_its_config() -> None:
    model = mmspec.zoo.load("vlm")[0]
    own, sketched = needs_of(take_apart(model)), sized("zoo")[1]
    assert own == sketched and needs_of(take_apart(model)) is own
    assert needs_of(take_apart(tiny("llama"))).per_token == 2 * 2 * 2 * 8 * 4  # layers, K and V, groups, width, bytes


def test_generate_cuts_the_draft_to_a_budget() -> None:
    """The output stays plain decoding's; the warning names the tokens that the drafts then have."""
    model, inputs = mmspec.zoo.load("vlm")[0], caption()
    drafter = mmspec.zoo.load("vlm/eagle").with_shape(Chain(FixedLength(40)))
    common = dict(max_new_tokens=24, do_sample=False, return_dict=True, **inputs)
    plain = mmspec.generate(model, **common)
    own = sum(weight.nbytes for weight in drafter.parameters())
    sizes = RequestShape(inputs["input_ids"].shape[1], 24, pictures=model.config.image_seq_length)
    needs = sized("zoo")[1]
    drafted = {n: own + needs.weights + of(Chain(FixedLength(n)), sizes, drafter).total for n in (6, 7)}
    with pytest.warns(RuntimeWarning, match="drafts of 6 tokens in this request, not 40 tokens"):
        cut = mmspec.generate(model, drafter=drafter, memory=f"{drafted[7] - 1}B", **common)
    assert torch.equal(cut.sequences, plain.sequences) and max(n for (n,) in cut.stats.accepted) <= 6
    assert cut.stats.target_passes < plain.stats.target_passes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = mmspec.generate(model, drafter=drafter, memory="1GB", **common)
    assert torch.equal(whole.sequences, plain.sequences) and max(n for (n,) in whole.stats.accepted) > 6
    least = own + needs.weights + of(None, sizes).total
    with pytest.warns(RuntimeWarning, match="no draft beside plain decoding"):
        none = mmspec.generate(model, drafter=drafter, memory=f"{least}B", **common)
    assert none.stats.drafter == "none" and none.stats.target_passes == plain.stats.target_passes
    rounds = mmspec.vlm.Rounds()
    mmspec.generate(model, capture=rounds, **common)
    held = rounds.nbytes  # the slot that waits for requests takes a part of the budget
    assert held > 10**6
    with pytest.warns(RuntimeWarning, match="drafts of 6 tokens in this request, not 40 tokens"):
        mmspec.generate(model, drafter=drafter, memory=f"{drafted[7] - 1 + held}B", capture=rounds, **common)
    with pytest.raises(ValueError, match="MB of captured rounds and 1 x"):
        mmspec.generate(model, drafter=drafter, memory="10MB", capture=rounds, **common)
    for arguments in (dict(drafter=drafter), {}):
        with pytest.raises(ValueError, match="memory: expected at least .* for the weights and 1 x"):
            mmspec.generate(model, memory="10MB", **arguments, **common)


def test_budgets_that_cannot_be_kept_are_refused() -> None:
    model, inputs = tiny("llama"), {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 4}
    with pytest.raises(ValueError, match="memory: expected a trained drafter or none, got PromptLookup"):
        mmspec.generate(model, drafter="lookup", memory="1GB", **inputs)
    with pytest.raises(ValueError, match="memory: expected a size such as 8GB"):
        mmspec.generate(model, memory="much", **inputs)
    assert mmspec.generate(model, memory="1GB", **inputs).shape == (1, 7)
    decoded = model.generate(**inputs, custom_generate=mmspec.decode, memory="1GB")
    assert decoded.shape == (1, 7)
