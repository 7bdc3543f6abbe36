"""What a request cost: timed parts, and the rest of the call."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.stats import Stats


def test_the_timed_parts_and_the_rest_make_the_whole_call() -> None:
    stats = Stats(prefill_s=0.5, draft_s=0.25, target_s=1.0, verify_s=0.125)
    with stats.time("draft"):
        pass
    assert list(stats.seconds()) == ["prefill", "draft", "target", "verify"] and stats.seconds()["draft"] > 0.25
    stats.close(3.0)
    assert stats.other_s == pytest.approx(1.125, abs=1e-3)
    assert sum(stats.seconds().values()) + stats.other_s == pytest.approx(3.0)
    stats.close(2.0)  # a second measure replaces the first
    assert stats.other_s == pytest.approx(0.125, abs=1e-3)


def test_a_part_that_is_timed_inside_another_has_its_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 10.0])  # verify begins, target begins, target ends, verify ends
    monkeypatch.setattr("mmspec.core.round.stats.perf_counter", lambda: next(clock))
    stats = Stats()
    with pytest.raises(KeyError), stats.time("verify"), stats.time("target"):
        raise KeyError
    assert (stats.target_s, stats.verify_s) == (3.0, 7.0)


def test_the_total_variation_paid_is_none_until_a_round_pays_some() -> None:
    stats = Stats(emitted=[6, 4])
    stats.add_paid(None)
    assert stats.paid is None and stats.to_dict()["mean_paid"] is None
    stats.add_paid(torch.tensor([0.25, 0.5]))
    stats.add_paid(torch.tensor([0.25, 0.0]))
    assert stats.paid == 1.0 and stats.to_dict()["mean_paid"] == pytest.approx(0.1)
