"""Planted mistakes are each called by their name, with their distance, and right steps pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmspec.certify import certify
from mmspec.certify.runners import BATCH, STATE
from tests.certify import planted

NAMED = {
    planted.always_accepts: "always accepts",
    planted.not_renormalised: "residual not renormalised",
    planted.cut_forgotten: "q before its top-k cut",
    planted.never_cropped: STATE,
    planted.Haunted: STATE,
    planted.shortest_of_batch: BATCH,
    planted.first_rows_coins: BATCH,
    planted.one_row_late: "p of the token after",
    planted.from_the_target: "no residual",
    planted.likeliest: "greedy",
    planted.three_in_a_hundred: "lenient by 1.03",
}


@pytest.mark.parametrize(("step", "name"), NAMED.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_planted_mistake_is_named(step: Callable, name: str) -> None:
    found = certify(step)
    assert not found.exact and found.method == "regions" and found.distance > 1e-3
    assert found.behaves_like == name


@pytest.mark.parametrize("step", (planted.right, planted.cut_made), ids=lambda step: step.__name__)
def test_a_right_step_passes_to_rounding(step: Callable) -> None:
    found = certify(step)
    assert found.exact and found.distance < 1e-12 and found.behaves_like is None and not found.notes
    assert {case.laws for case in found.cases} >= {"random", "far", "p with zeros", "equal", "disjoint", "top-k"}


def test_a_step_of_numpy_and_float32_passes() -> None:
    found = certify(planted.in_numpy, arrays="numpy", probes=500)
    assert found.exact and 1e-12 < found.distance < 1e-6


def test_uniforms_stay_below_1_in_float32_too() -> None:
    assert certify(planted.in_float32, laws=("random", "top-k")).exact


def test_a_mistake_that_is_not_on_the_list_fails_without_a_name() -> None:
    found = certify(planted.shares_noise)
    assert not found.exact and found.distance > 0.1 and found.behaves_like is None


def test_accepting_at_a_uniform_of_zero_is_noted_and_changes_no_distribution() -> None:
    found = certify(planted.up_to_and_including)
    assert found.exact and found.distance < 1e-12
    assert any("a value of probability 0" in note for note in found.notes)
