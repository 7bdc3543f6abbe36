"""Predicted against measured: what is counted of a request, which clock times it, and what the table says."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec import drafters, vlm
from mmspec.estimate.counting import WorkCounter, count_request, own_clock
from mmspec.estimate.device import Device
from mmspec.estimate.work import Work
from mmspec.evaluate.engine.registry import config_of
from mmspec.evaluate.machine import predicted
from mmspec.evaluate.machine.predicted_page import markdown_page, predicted_panels, summary, table_rows

ROW = {
    "case": "a case", "domain": "vlm", "method": "A", "key": "a", "exact": True, "accept_length": 3.0, "operators": 900,
    "measured": 2.0, "spread": [1.9, 2.1], "predicted": 2.1, "predicted_error": 0.05, "timed": None, "timed_error": None,
}  # fmt: skip
RESULT = {
    "env": {
        "command": "mmspec estimate --validate",
        "date": "2026-01-01",
        "processor": "P",
        "cores": 2,
        "threads": 1,
        "system": "Linux",
        "versions": {"torch": "2"},
        "load": [0.5, 1.5],
    },
    "rows": [ROW, {**ROW, "method": "B", "predicted": 3.0, "predicted_error": 0.5, "timed": 2.2, "timed_error": 0.1}],
}


def request(drafter: object = None) -> object:
    """A request to a tiny model, whose weights are always the same."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=40,
        pad_token_id=0,
        eos_token_id=1,
    )
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(5, 20, (1, 6))
    asked = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    return vlm.start(model, drafter=drafter, input_ids=ids, attention_mask=torch.ones_like(ids), **asked)


def test_a_round_is_counted_and_leaves_the_request_as_it_was() -> None:
    plain, counted_run = request(), request()
    while plain.step():
        pass
    counted = count_request(counted_run, rounds=5, timed=2)
    while counted_run.step():
        pass
    assert counted_run.target.tokens == plain.target.tokens
    assert counted.passed == pytest.approx(1.0, abs=0.8)  # a plain pass over a plain pass
    assert counted.target.calls > counted.rest.calls and counted.weights > 0
    assert count_request(request(), rounds=5).passed is None


def test_timing_does_not_change_the_counts() -> None:
    drafter = drafters.PromptLookup()
    _, once, timed = (count_request(request(drafter), rounds=4, timed=times) for times in (0, 0, 2))
    assert timed.round == once.round and timed.prefill == once.prefill


def test_a_drafting_round_has_more_work_than_a_plain_round() -> None:
    plain, drafted = count_request(request(), rounds=4), count_request(request(drafters.PromptLookup()), rounds=4)
    assert drafted.round.calls > plain.round.calls and drafted.round.total_flops >= plain.round.total_flops


def test_the_counter_skips_the_listed_sizes() -> None:
    rows = torch.zeros(7, 3)
    with WorkCounter() as everything:
        rows + 1.0
    with WorkCounter(frozenset({21})) as nothing:
        rows + 1.0
    assert everything.moved == 2 * 21 * 4 and nothing.moved == 0 and everything.calls == nothing.calls == 1


def test_one_thread_is_timed_by_its_own_clock() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert own_clock().__name__ == "thread_time" and own_clock("cuda").__name__ == "perf_counter"
        torch.set_num_threads(2)
        assert own_clock().__name__ == "perf_counter"
    finally:
        torch.set_num_threads(before)


def test_every_case_is_a_bench_with_its_baseline() -> None:
    for case in predicted.CASES:
        config = case.config(2, 1, 1)
        keys = [method.key for method in config.rows]
        assert case.baseline in keys and len(keys) > len(case.options["methods"])
    names = [(case.name, method) for case in predicted.CASES for method in case.options["methods"]]
    assert len(names) >= 20 and len(set(names)) == len(names)
    assert {case.domain for case in predicted.CASES} == {"vlm", "image", "continuous"} and config_of("vlm")


def test_a_prediction_is_the_ratio_of_seconds_a_token() -> None:
    device = Device("d", "", "", 1e9, {"float32": 1e12}, 1e-3, 1.0, waits=True, round=1e-3)
    target = predicted.CountedRequest(Work(calls=10), Work(calls=1), Work(calls=10), 1)
    found = predicted._RequestSeconds.of(device, {"tokens": 21, "accept_length": 1.0}, target, Work(), target)
    assert found.token() == pytest.approx((0.010 + 20 * (0.010 + 0.002)) / 21)
    assert found.token(0.0) == pytest.approx((0.010 + 20 * 0.002) / 21)


def test_the_operators_that_only_drafting_has_take_longer() -> None:
    device = Device("d", "", "", 1e9, {"float32": 1e12}, 1e-3, 1.0, waits=True, drafting=2.0)
    plain = predicted.CountedRequest(Work(), Work(calls=4), Work(), 1)
    drafted = predicted.CountedRequest(Work(), Work(calls=10), Work(), 1)
    row = {"tokens": 21, "accept_length": 1.0}
    assert predicted._RequestSeconds.of(device, row, drafted, Work(), plain).rest == pytest.approx(0.016)
    assert predicted._RequestSeconds.of(device, row, plain, Work(), drafted).rest == pytest.approx(0.004)


def test_the_table_marks_misses_and_the_page_says_how_many_there_are() -> None:
    heads, rows = table_rows(RESULT)
    assert len(heads) == len(rows[0]) and rows[0][5] == "+5%" and rows[1][5] == "+50% miss" and rows[0][6] == "-"
    assert summary(RESULT)[0].startswith("probe and counted operators: 1 of 2 rows within 15%")
    page = markdown_page(RESULT)
    assert "`mmspec estimate --validate`" in page and page.count("\n| a case |") == 2 and "0.5 to 1.5" in page
    (panel,) = predicted_panels(RESULT)
    assert panel.clouds == {"a case": ((2.0, 2.0), (2.1, 3.0))}


@pytest.mark.whole
def test_a_case_is_predicted_near_its_measurement() -> None:
    case = predicted.PredictedCase(
        "vlm", "vlm, captions", {**predicted.CASES[0].options, "methods": ("eagle",)}, "plain"
    )
    result = predicted.validate(2, 1, 3.0, 1, (case,))
    (row,) = result["rows"]
    assert 0.5 < row["predicted"] / row["measured"] < 2 and row["timed"] and result["env"]["load"]
