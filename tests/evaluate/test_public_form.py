"""Bench files keep their public form: the same fields in the same order, in rows of the same methods and settings."""

from __future__ import annotations

import json

import pytest

from tests.evaluate.public_form import FORM, MACHINE, every, form, measured, without_times

# a suite of every domain; the others take longer
DEFAULT = {("vlm", "strict"), ("image", "quality"), ("continuous", "quality"), ("video", "tokens")}


@pytest.mark.parametrize(
    ("domain", "suite"), [one if one in DEFAULT else pytest.param(*one, marks=pytest.mark.whole) for one in every()]
)
def test_the_form_of_a_bench_file_stays(domain: str, suite: str) -> None:
    result = measured(domain, suite)
    expected = json.loads(FORM.read_text())[f"{domain} {suite}"]
    assert set(MACHINE) <= result["env"].keys() and form(without_times(result)) == expected


def test_every_suite_has_a_form() -> None:
    from importlib import import_module

    from mmspec.evaluate.engine.registry import DOMAINS

    suites = {(name, suite) for name in DOMAINS for suite in import_module(f"{DOMAINS[name]}.suites").SUITES}
    assert suites == set(every()) and {" ".join(suite) for suite in suites} == set(json.loads(FORM.read_text()))
