"""The length controller of the page on controllers: where drafts end, and that sampled text keeps its distribution."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core import FixedLength
from mmspec.methods import parse
from mmspec.vlm.drafters import SmallModel
from tests.docs.examples import imported, said
from tests.evaluate.tiny_zoo import use_tiny_zoo
from tests.vlm.test_sampled_law import PROMPT, ROWS, STEPS, exact_law, narrow, p_value


def test_it_runs_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_zoo(monkeypatch)
    first, second = said(monkeypatch, capsys, "use_length")
    assert "JointStop(least=0.3, longest=8) identical: True" in first
    assert "JointStop(least=0.6, longest=4) identical: True" in second


def test_a_row_ends_where_its_product_drops_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = imported(monkeypatch, "length").JointStop(0.5).begin()
    confidences = torch.tensor([[0.9, 0.6, 0.4], [0.8, 0.9, 0.9], [0.6, 0.9, 0.9]])  # [steps, B]
    grown = [growth.grow(step, confidence).tolist() for step, confidence in enumerate(confidences)]
    assert grown == [[True, True, False], [True, True, False], [False, False, False]]


def sampled(length: object, rows: int = ROWS) -> object:
    return mmspec.generate(
        narrow(),
        input_ids=PROMPT.expand(rows, -1),
        drafter=SmallModel(narrow(0.2), length),
        seed=4,
        do_sample=True,
        max_new_tokens=STEPS + 2,
        top_k=0,
        temperature=1.0,
        return_dict=True,
    )


def test_sampled_text_has_the_targets_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = imported(monkeypatch, "length").JointStop
    out = sampled(stop(0.4, longest=3))
    assert p_value(out.sequences[:, PROMPT.shape[1] :][:, :STEPS], exact_law(1.0)) > 1e-3
    longest = sampled(FixedLength(3), 1000)
    assert 1.05 < out.stats.accept_length < longest.stats.accept_length  # some drafts end early


def test_its_limits_are_the_longest_drafts_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = imported(monkeypatch, "length").JointStop
    always, fixed = sampled(stop(0.0, longest=2), 50), sampled(FixedLength(2), 50)
    assert always.sequences.equal(fixed.sequences) and always.stats.accepted == fixed.stats.accepted
    assert sampled(stop(1.0), 50).stats.accept_length == 1


def test_its_text_is_known_once_the_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch, "length")
    assert parse("joint:least=0.4,longest=5", "vlm", "controller").make() == module.JointStop(0.4, 5)
    for wrong in ("joint:least=1.5", "joint:longest=0"):
        with pytest.raises(ValueError, match="expected least from 0 to 1 and longest from 1, got .*; correct"):
            parse(wrong, "vlm", "controller").make()
