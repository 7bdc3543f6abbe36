"""The recorder that guards refactorings: enough requests of every domain, repeatable, and differences are reported."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

from tests.recorded import differences, entry, requests


def test_at_least_120_requests_of_four_domains():
    count = Counter(name.split()[0] for name in requests())
    assert set(count) == {"vlm", "image", "continuous", "video"} and min(count.values()) >= 16
    assert count.total() >= 120


def test_a_request_is_recorded_the_same_twice_and_a_changed_field_is_named():
    run = requests()["vlm lookup greedy 1"]
    first, second = entry(run()), entry(run())
    assert first == second
    changed = deepcopy(second)
    changed["accepted"][1][0] += 1
    assert differences({"a": first}, {"a": second}) == []
    assert differences({"a": first}, {"a": changed}) == ["a: accepted"]
    assert differences({"a": first, "b": first}, {"a": second}) == ["b: only in one recording"]
