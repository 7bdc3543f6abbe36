"""`mmspec methods`: lists of methods, and all there is to know of one."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mmspec.cli import app


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["methods", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("name", "bench"),
    (
        ("scd", "mmspec bench image --suite all or speed or quality or pareto"),
        ("gsd", "mmspec bench image --suite all"),
        ("eagle3", "mmspec bench vlm --suite real or drafters"),
        ("lookup", "mmspec bench vlm --suite real or methods"),
        ("cspd", "mmspec bench continuous --suite speed"),
        ("strided", "mmspec bench video --suite speed or routers"),
    ),
)
def test_a_method_names_the_benches_that_measure_it(name: str, bench: str) -> None:
    assert f"measured by: {bench}" in shown(name)


def test_a_method_that_no_bench_has_names_none() -> None:
    assert "measured by" not in shown("explore")


def test_a_method_shows_its_paper_its_settings_and_an_example() -> None:
    said = shown("lantern")
    assert "LANTERN: Accelerating Visual Autoregressive Models" in said and "relaxed" in said
    assert "delta" in said and "example: lantern:" in said


def test_lists_can_be_narrowed() -> None:
    assert "gsd" not in shown("--exact") and "gsd" in shown("--kind", "rule", "--relaxed")
    assert "dspark" not in shown("--domain", "image")
